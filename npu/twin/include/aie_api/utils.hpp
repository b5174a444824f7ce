// SPDX-License-Identifier: Apache-2.0
// The device's header of this name prints vectors from a core; nothing of it is supported, so using it does not compile.
#pragma once
#include "aie.hpp"
