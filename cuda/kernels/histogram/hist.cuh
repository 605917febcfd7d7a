// The histogram's kernels: the generated `namespace spec` comes before this.
#pragma once

#include "histogram/hist_call.cuh"
#include "histogram/hist_cluster.cuh"
#include "histogram/hist_combine.cuh"
#include "histogram/hist_global.cuh"
#include "histogram/hist_shared.cuh"
#include "histogram/hist_tiny.cuh"
#include "histogram/hist_update.cuh"
