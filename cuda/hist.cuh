// The histogram's kernels: the generated `namespace spec` comes before this.
#pragma once

#include "hist_call.cuh"
#include "hist_cluster.cuh"
#include "hist_combine.cuh"
#include "hist_global.cuh"
#include "hist_shared.cuh"
#include "hist_tiny.cuh"
#include "hist_update.cuh"
