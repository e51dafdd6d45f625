// The x86 intrinsics; or, with FOREDRAFT_EMULATE, a portable form of them, so that the AVX-512 and VNNI kernels can be run and compared
// on machines that lack these instructions (make emulate).
#pragma once
#ifdef FOREDRAFT_EMULATE
#include "emulated_intrinsics.hpp"
#else
#include <immintrin.h>
#endif
