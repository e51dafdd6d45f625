// The loops of a pick for AVX2, and the choice between them and the baseline's. The target is set for these functions alone (no fused
// multiply-add in it), so nothing inlined elsewhere is compiled for it.
#include "noise.hpp"
#include "pick.hpp"

namespace foredraft {

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC push_options
#pragma GCC target("avx2")
namespace {
constexpr int kWidth = 8;
typedef int Halves __attribute__((vector_size(4 * kWidth)));
#define multiply_low(x, y) ((Longs)__builtin_ia32_pmuludq256((Halves)(x), (Halves)(y)))
#include "pick_lanes.inc"
}  // namespace
#pragma GCC pop_options

const PickLoops& best_pick_loops() {
    static const PickLoops wide{lanes_range, lanes_collect, lanes_roughly, lanes_weigh, lanes_hash, lanes_bound};
    return __builtin_cpu_supports("avx2") ? wide : baseline_pick_loops();
}
#else
const PickLoops& best_pick_loops() { return baseline_pick_loops(); }
#endif

}  // namespace foredraft
