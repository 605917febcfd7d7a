// The launch functions of every family.
#pragma once

#include "hist_launch.h"
#include "reduce_launch.h"
#include "scan_launch.h"
#include "segments_launch.h"
#include "stencil_launch.h"
