// AVX2 without VNNI. vpmaddubsw adds two products in 16 bits and saturates, so at most 2^15 / (127 * 2 * largest code) of its results are
// added before they are widened: eight for 4-bit codes, four for 5-bit, two for 6-bit; 8-bit weights go in signed, by magnitude and sign.
#include "kernels.hpp"

#include <immintrin.h>

namespace foredraft {
namespace {

#include "kernels_avx2.inc"

// Sum over `count` quads of products in 16-bit pairs.
template <int Count> inline Int dot16(const Int* u, const int8_t* q) {
    Int sum = _mm256_maddubs_epi16(u[0], word(q));
#pragma GCC unroll 8
    for (int i = 1; i < Count; i++) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(u[i], word(q + 4 * i)));
    return sum;
}

template <int Bits> inline Int dot32(const Int u[8], const int8_t* q, const int16_t* halves) {
    const Int one = _mm256_set1_epi16(1);
    if constexpr (Bits == 4) {
        return _mm256_madd_epi16(dot16<8>(u, q), one);
    } else if constexpr (Bits == 5) {
        return _mm256_add_epi32(_mm256_madd_epi16(dot16<4>(u, q), one), _mm256_madd_epi16(dot16<4>(u + 4, q + 16), one));
    } else {
        Int sum = _mm256_madd_epi16(word(halves), _mm256_set1_epi16(128));  // the codes' offset times the sum of q
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const Int w = _mm256_xor_si256(u[i], bytes((char)0x80));
            const Int products = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(word(q + 4 * i), w));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(products, one));
        }
        return sum;
    }
}

struct SubScales {
    Int first, second, both;
    SubScales(const int8_t* a, const int8_t* b) {
        const Int x = load_signed(a), y = load_signed(b);
        first = pairs(x, x), second = pairs(y, y), both = pairs(x, y);
    }
};

// sum of sub_scale * (u - 32) * q over both halves of the group
inline Col scaled_dot32(const Int u[8], const Tile& t, size_t i, const SubScales& s) {
    const int8_t* q = t.q + i * kGroup;
    Int sum = _mm256_slli_epi32(_mm256_madd_epi16(s.both, word(t.halves + 2 * i)), 5);
    sum = _mm256_sub_epi32(_mm256_madd_epi16(dot16<2>(u, q), s.first), sum);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(dot16<2>(u + 2, q + 8), s.first));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(dot16<2>(u + 4, q + 16), s.second));
    return to_float(_mm256_add_epi32(sum, _mm256_madd_epi16(dot16<2>(u + 6, q + 24), s.second)));
}

template <int Bits> inline void dot_rows(const Int u[8], const int8_t* q, const int16_t* halves, int, Int* sum) {
    *sum = dot32<Bits>(u, q, halves);
}

#include "kernels_gemm.inc"

}  // namespace

const Kernels& avx2_kernels() {
    static const Kernels kernels = {"avx2", kTile, gemm, quantise, lanes_rms_norm, lanes_add, lanes_scale, lanes_gate, lanes_rope, lanes_store, lanes_attend, lanes_requantise, sweep};
    return kernels;
}

}  // namespace foredraft
