// RunReduce of StencilElements: every boundary, grid and pool gives the result of a plain loop over the cells, floats with the
// same bits for any number of threads.

#include "stencil_reduce.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "check.h"
#include "pools.h"
#include "reduce_kernels.h"

namespace jaxprims::test::stencil_reduce_test {
namespace {

// One array of int32, read at one offset; the operator is not commutative and knows elements' positions.
struct Problem {
  StencilReduceCall call;
  std::vector<int32_t> value;
  int64_t scale = 3;
  int64_t members = 1;

  Problem(const std::vector<int64_t>& size, const std::vector<int64_t>& offset, Boundary boundary, int64_t unit, size_t kept) {
    const size_t rank = size.size();
    call.unit = call.ordered.n = unit;
    auto& array = call.arrays.emplace_back();
    array.bytes = 4 * unit;
    array.fill.fill(int64_t{77} << 32 | 77);
    array.stride.resize(rank);
    int64_t cells = unit, stride = array.bytes;
    for (size_t a = 0; a < rank; ++a) {
      call.window.push_back({1, 1 + size[a]});
      // The grid is one cell further than the array's, whose last cells are not there.
      array.axes.push_back({boundary, size[a] + 3, 2, 1, 1});
      cells *= size[a] + 3;
      if (a < kept) {
        call.ordered.batch.push_back(size[a]);
        members *= size[a];
      } else {
        call.ordered.n *= size[a];
      }
    }
    for (size_t a = rank; a-- > 0; stride *= array.axes[a].size) array.stride[a] = stride;
    std::mt19937 random(static_cast<unsigned>(cells));
    for (int64_t i = 0; i < cells; ++i) value.push_back(static_cast<int32_t>(random() % 2001) - 1000);
    array.operand.data = reinterpret_cast<char*>(value.data());
    call.reads.push_back({0, offset});
    call.line = 1;
    Operand operand;
    operand.data = reinterpret_cast<char*>(&scale);
    call.ordered.uniforms.push_back(operand);
  }

  AffineResult Run(Pool& pool, int threads) {
    AffineResult out(members);
    call.ordered.outs.clear();
    for (int k = 0; k < 4; ++k) {
      Operand& o = call.ordered.outs.emplace_back();
      o.data = out.leaves[k].data();
      int64_t stride = AffineResult::kBytes[k];
      for (size_t a = call.ordered.batch.size(); a-- > 0; stride *= call.ordered.batch[a]) o.strides[a] = stride;
    }
    const OrderedShape shape = AffineKernel::Shape("reduce", false);
    Machine machine;
    machine.threads = threads;
    ReduceProblem problem = DescribeReduce(shape, call.ordered);
    OfStencil(problem, 1);
    const ReducePlan plan = MakeReducePlan(problem, machine);
    const auto fills = StencilElements::Fills(call, std::min(plan.leaf, call.window.back().size() * call.unit));
    RunReduce(pool, shape, call.ordered, AffineKernel::Kernel(false), plan, StencilElements(shape, call, fills));
    return out;
  }

  AffineResult Plain() const {
    AffineResult out(members);
    const size_t rank = call.window.size();
    for (int64_t m = 0; m < members; ++m) {
      AffineState s = kAffineIdentity;
      for (int64_t i = 0; i < call.ordered.n; ++i) {
        int64_t cell = (m * call.ordered.n + i) / call.unit, at = i % call.unit;
        bool there = true;
        for (size_t a = rank; a-- > 0; cell /= call.window[a].size()) {
          const StencilAxis& axis = call.arrays[0].axes[a];
          const int64_t x = Mapped(axis.boundary, call.window[a].begin + cell % call.window[a].size() + call.reads[0].offset[a],
                                   axis.begin(), axis.end());
          there = there && x != kFillValue;
          if (there) at += (x + axis.origin) * call.arrays[0].stride[a] / 4;
        }
        s = Compose(s, AffineElement(there ? value[static_cast<size_t>(at)] : 77, i, scale));
      }
      out.Set(m, s);
    }
    return out;
  }
};

void Check(const std::vector<int64_t>& size, const std::vector<int64_t>& offset, int64_t unit, size_t kept) {
  for (const Boundary boundary :
       {Boundary::kEdge, Boundary::kWrap, Boundary::kReflect, Boundary::kSymmetric, Boundary::kConstant, Boundary::kNothing}) {
    Problem p(size, offset, boundary, unit, kept);
    NeverPool never;
    QueuePool queue(3);
    const AffineResult first = p.Run(never, 1);
    CHECK(first.SameMaps(p.Plain()));
    CHECK(p.Run(queue, 4) == first);
  }
}

TEST(StencilReduceOfOneLine) {
  for (const int64_t n : {1, 5, 8190, 30'000}) {
    for (const int64_t offset : {-3, 0, 2}) Check({n}, {offset}, 1, 0);
  }
  Check({500}, {1}, 3, 0);
}

TEST(StencilReduceOfGrids) {
  for (const int64_t offset : {-2, 0, 1}) {
    Check({40, 700}, {offset, 1}, 1, 0);
    Check({90, 30}, {offset, -1}, 3, 1);
    Check({7, 11, 300}, {1, offset, offset}, 1, 1);
  }
  Check({3, 20'000}, {0, -1}, 1, 0);
  Check({6, 5, 40}, {3, -4, 50}, 1, 2);
}

}  // namespace
}  // namespace jaxprims::test::stencil_reduce_test
