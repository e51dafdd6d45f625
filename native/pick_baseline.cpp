// The loops of a pick for the plain baseline of the architecture.
#include "noise.hpp"
#include "pick.hpp"

namespace foredraft {
namespace {
constexpr int kWidth = 4;
#if defined(__SSE2__)
typedef int Halves __attribute__((vector_size(4 * kWidth)));
#define multiply_low(x, y) ((Longs)__builtin_ia32_pmuludq128((Halves)(x), (Halves)(y)))
#else
#define multiply_low(x, y) (((x) & 0xFFFFFFFF) * (y))
#endif
#include "pick_lanes.inc"
}  // namespace

const PickLoops& baseline_pick_loops() {
    static const PickLoops loops{lanes_range, lanes_collect, lanes_roughly, lanes_weigh, lanes_hash, lanes_bound};
    return loops;
}

}  // namespace foredraft
