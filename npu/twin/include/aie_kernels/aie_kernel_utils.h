// SPDX-License-Identifier: Apache-2.0
// The name by which kernels include it that are compiled from mlir-aie's own root.
#pragma once
#include "../aie_kernel_utils.h"
