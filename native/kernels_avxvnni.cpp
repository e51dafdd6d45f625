// AVX2 with the 256-bit VNNI dot product (no AVX-512): Alder Lake and later, Zen 5 with AVX-512 off.
#include "kernels.hpp"

#include "intrinsics.hpp"

namespace foredraft {
namespace {

#include "kernels_avx2.inc"

template <int Count> inline Int dot(Int sum, const Int* u, const int8_t* q) {
#pragma GCC unroll 8
    for (int i = 0; i < Count; i++) sum = _mm256_dpbusd_avx_epi32(sum, u[i], word(q + 4 * i));
    return sum;
}

template <int Bits> inline Int dot32(const Int u[8], const int8_t* q, const int16_t*) { return dot<8>(_mm256_setzero_si256(), u, q); }

struct SubScales {
    Int first, second, both;
    SubScales(const int8_t* a, const int8_t* b) : first(load_signed(a)), second(load_signed(b)), both(pairs(first, second)) {}
};

// sum of sub_scale * (u - 32) * q over both halves of the group
inline Col scaled_dot32(const Int u[8], const Tile& t, size_t i, const SubScales& s) {
    const int8_t* q = t.q + i * kGroup;
    const Int first = _mm256_mullo_epi32(dot<4>(_mm256_setzero_si256(), u, q), s.first);
    const Int second = _mm256_mullo_epi32(dot<4>(_mm256_setzero_si256(), u + 4, q + 16), s.second);
    return to_float(_mm256_sub_epi32(_mm256_add_epi32(first, second), _mm256_slli_epi32(_mm256_madd_epi16(s.both, word(t.halves + 2 * i)), 5)));
}

template <int Bits> inline void dot_rows(const Int u[8], const int8_t* q, const int16_t* halves, int, Int* sum) {
    *sum = dot32<Bits>(u, q, halves);
}

#include "kernels_gemm.inc"

}  // namespace

const Kernels& avxvnni_kernels() {
    static const Kernels kernels = {"avxvnni", kTile, gemm, quantise, lanes_rms_norm, lanes_add, lanes_scale, lanes_gate, lanes_rope, lanes_store, lanes_attend, lanes_requantise, sweep};
    return kernels;
}

}  // namespace foredraft
