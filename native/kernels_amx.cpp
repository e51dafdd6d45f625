// AMX: one instruction multiplies a group of up to sixteen rows with the codes of a panel's sixteen outputs. The sums over groups and
// all else are AVX-512's.
#include "kernels.hpp"

#include "intrinsics.hpp"

namespace foredraft {
namespace {

#include "kernels_avx512.inc"
#include "kernels_unpack.inc"

// Groups unpacked at a time, a step before they are multiplied: a tile can't be loaded from stores still under way.
constexpr size_t kStep = 8;
// Groups from one multiplied to one fetched into the first cache: three steps (16, 32 and 48 measured slower). The second is far ahead.
constexpr size_t kAhead = 24, kFarAhead = 8192;  // and bytes beyond these
// Tiles of rows that share the unpacked codes: few enough for their activations to stay in the core's cache.
constexpr size_t kTogether = 8;
// With fewer rows in a tile, storing its products and reading them again takes longer than AVX-512's products do.
constexpr int kFewestRows = 11;

struct alignas(64) Group {  // of a panel's weights, ready to be multiplied; column: the minimum or, for Q6_K, the halves' sub-scales
    uint8_t codes[512];
    float scale[16], column[2][16];
};

// Those of Q6_K become signed.
template <class Codes> inline void unpack(const Codes& codes, Group& out) {
    Int u[8];
    unpack(codes, 0, u);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) _mm512_store_si512(out.codes + kLine * i, kBits<Codes> == 6 ? _mm512_sub_epi8(u[i], bytes(32)) : u[i]);
}

template <class Codes> inline void prepare(const Scaled<Codes>& b, size_t, Group& out) {
    unpack(b.codes[0], out);
    const Col scale = load_halves(b.scale), minimum = mul(scale, all((float)(1 << (kBits<Codes> - 1))));
    store(out.scale, scale), store(out.column[0], minimum);
}
template <class Codes> inline void prepare(const Shifted<Codes>& b, size_t, Group& out) {
    unpack(b.codes[0], out);
    store(out.scale, load_halves(b.scale)), store(out.column[0], load_halves(b.minimum));
}
template <class Codes> inline void prepare(const Super<Codes>& b, size_t g, Group& out) {
    unpack(b.codes[g], out);
    store(out.scale, mul(load_halves(b.scale), load_counts(b.sub_scale[g])));
    store(out.column[0], mul(load_halves(b.minimum), load_counts(b.sub_minimum[g])));
}
inline void prepare(const Super6& b, size_t g, Group& out) {
    unpack(b.codes[g], out);
    store(out.scale, load_halves(b.scale));
    for (int h = 0; h < 2; h++) store(out.column[h], to_float(load_signed(b.sub_scale[2 * g + h])));
}

// Intrinsics of GCC 12 don't say that they read memory: without this the compiler could still hold back what was written there.
inline void written(const void* p) { __asm__ volatile("" : : "r"(p) : "memory"); }

using Dots = int32_t[2][kTile][kPanel];

// The integer dot products of all rows and outputs: of the group, or of each half of it.
template <bool Halves> inline void multiply(const Group& w, const int8_t* q, Dots& dots) {
    written(&w);
    _tile_loadd(1, q, 32);
    _tile_loadd(2, w.codes, 64);
    _tile_zero(0);
    if constexpr (Halves) {
        _tile_dpbssd(0, 1, 2);
        _tile_loadd(4, q + 16, 32);
        _tile_loadd(5, w.codes + 256, 64);
        _tile_zero(3);
        _tile_dpbssd(3, 4, 5);
        _tile_stored(3, dots[1], 64);
    } else {
        _tile_dpbsud(0, 1, 2);
    }
    _tile_stored(0, dots[0], 64);
}

template <bool Halves, int M> inline void add_group(const Group& w, const Tile& t, size_t g, const Dots& dots, Col acc[M]) {
    const Col scale = load(w.scale), first = load(w.column[0]), second = Halves ? load(w.column[1]) : first;
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
        const size_t i = g * M + m;
        Col dot = to_float(_mm512_load_si512(dots[0][m]));
        // Integers below 2^24 in magnitude, so exact.
        if constexpr (Halves) dot = fma(to_float(_mm512_load_si512(dots[1][m])), second, mul(dot, first));
        acc[m] = fma(dot, mul(scale, all(t.scale[i])), acc[m]);
        if constexpr (!Halves) acc[m] = fnma(first, all(t.sum[i]), acc[m]);
    }
}

// Groups [begin, end) for one tile of M rows. While a group is added up, the next one is multiplied, and what comes later is fetched:
// activations at `soon`, and `Bytes` of weights a group.
template <bool Halves, int M, size_t Bytes>
inline void add_groups(const Group* w, const Tile& t, size_t begin, size_t end, const int8_t* soon, const uint8_t* weights,
                       float sums[][kPanel]) {
    alignas(64) Dots dots[2];
    Col acc[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) acc[m] = begin == 0 ? all(0.0f) : load(sums[m]);
    multiply<Halves>(*w, t.q + begin * M * kGroup, dots[0]);
    for (size_t g = begin; g < end; g++, w++) {
        if (g + 1 < end) multiply<Halves>(w[1], t.q + (g + 1) * M * kGroup, dots[(g + 1 - begin) % 2]);
        for (int line = 0; line < M / 2; line++, soon += kLine) __builtin_prefetch(soon);
        if (weights) {
            for (size_t b = 0; b < Bytes; b += 64) __builtin_prefetch(weights + b), __builtin_prefetch(weights + kFarAhead + b, 0, 2);
            weights += Bytes;
        }
        add_group<Halves, M>(*w, t, g, dots[(g - begin) % 2], acc);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) store(sums[m], acc[m]);
}

// One panel for `count` tiles of M rows each.
template <class Block, int M>
void panel_rows(const uint8_t* data, const Tile* tiles, size_t count, size_t outputs, float* y, size_t row_stride) {
    constexpr bool halves = sizeof(Block) == sizeof(Super6);
    constexpr size_t each = sizeof(Block::codes) / sizeof(Block::codes[0]), bytes = sizeof(Block) / each;
    const Block* blocks = reinterpret_cast<const Block*>(data);
    const size_t groups = tiles->groups;
    alignas(64) float sums[kTogether][M][kPanel];
    Group ready[2][kStep];
    const auto end_of = [&](size_t begin) { return begin + kStep < groups ? begin + kStep : groups; };
    const auto unpack = [&](size_t begin) {
        Group* out = ready[begin / kStep % 2];
        for (size_t g = begin; g < end_of(begin); g++) prepare(blocks[g / each], g % each, *out++);
    };
    unpack(0);
    for (size_t begin = 0; begin < groups; begin += kStep) {
        if (begin + kStep < groups) unpack(begin + kStep);
        for (size_t i = 0; i < count; i++) {
            const int8_t* soon = i + 1 < count ? tiles[i + 1].q + begin * M * kGroup : tiles[0].q + end_of(begin) * M * kGroup;
            const uint8_t* weights = i == 0 ? data + (begin + kAhead) * bytes : nullptr;
            add_groups<halves, M, bytes>(ready[begin / kStep % 2], tiles[i], begin, end_of(begin), soon, weights, sums[i]);
        }
    }
    const __mmask16 present = (__mmask16)((1u << outputs) - 1);
    for (size_t i = 0; i < count; i++)
        for (int m = 0; m < M; m++, y += row_stride) _mm512_mask_storeu_ps(y, present, load(sums[i][m]));
}

template <int M> void one_panel(const Matrix& w, size_t panel, const Tile* tiles, size_t count, float* y, size_t row_stride) {
    const uint8_t* data = w.data + panel * w.panel_bytes;
    const size_t left_over = w.outputs - panel * kPanel, outputs = left_over < kPanel ? left_over : kPanel;
    y += panel * kPanel;
    switch (w.type) {
        case Type::Q4_0: return panel_rows<Scaled<Codes4>, M>(data, tiles, count, outputs, y, row_stride);
        case Type::Q4_1: return panel_rows<Shifted<Codes4>, M>(data, tiles, count, outputs, y, row_stride);
        case Type::Q5_0: return panel_rows<Scaled<Codes5>, M>(data, tiles, count, outputs, y, row_stride);
        case Type::Q5_1: return panel_rows<Shifted<Codes5>, M>(data, tiles, count, outputs, y, row_stride);
        case Type::Q8_0: return panel_rows<Scaled<Codes8>, M>(data, tiles, count, outputs, y, row_stride);
        case Type::Q4_K: return panel_rows<Super<Codes4>, M>(data, tiles, count, outputs, y, row_stride);
        case Type::Q5_K: return panel_rows<Super<Codes5>, M>(data, tiles, count, outputs, y, row_stride);
        case Type::Q6_K: return panel_rows<Super6, M>(data, tiles, count, outputs, y, row_stride);
        default: return;  // float weights never come here
    }
}

using PanelFunction = void (*)(const Matrix&, size_t, const Tile*, size_t, float*, size_t);

template <int M> PanelFunction panel_function(int rows) {
    if constexpr (M > kFewestRows) {
        if (rows < M) return panel_function<M - 1>(rows);
    }
    return one_panel<M>;
}

// The shapes of the tile registers in this thread: sums, activations, codes, twice.
class TileShapes {
public:
    TileShapes(int rows, int inputs) {
        struct alignas(64) { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shapes = {};
        shapes.palette = 1;
        for (int i = 0; i < 6; i += 3) {
            shapes.bytes[i] = 64, shapes.rows[i] = (uint8_t)rows;
            shapes.bytes[i + 1] = (uint16_t)inputs, shapes.rows[i + 1] = (uint8_t)rows;
            shapes.bytes[i + 2] = 64, shapes.rows[i + 2] = (uint8_t)(inputs / 4);
        }
        written(&shapes);
        _tile_loadconfig(&shapes);
    }
    ~TileShapes() { _tile_release(); }
    TileShapes(const TileShapes&) = delete;
};

void gemm(const Matrix& w, size_t begin, size_t end, const Tile* tiles, size_t count, float* y, size_t row_stride) {
    if (!w.quantised()) return avx512_kernels().gemm(w, begin, end, tiles, count, y, row_stride);
    for (size_t i = 0, n; i < count; i += n) {
        const int rows = tiles[i].rows;
        for (n = 1; i + n < count && n < kTogether && tiles[i + n].rows == rows;) n++;
        if (rows < kFewestRows) {
            avx512_kernels().gemm(w, begin, end, tiles + i, n, y, row_stride);
        } else {
            const TileShapes shapes(rows, w.type == Type::Q6_K ? 16 : 32);
            const PanelFunction panel = panel_function<kTile>(rows);
            for (size_t p = begin; p < end; p++) panel(w, p, tiles + i, n, y, row_stride);
        }
        y += n * rows * row_stride;
    }
}

}  // namespace

const Kernels& amx_kernels() {
    static const Kernels kernels = [] {
        Kernels k = avx512_kernels();
        k.name = "amx", k.gemm = gemm;
        return k;
    }();
    return kernels;
}

}  // namespace foredraft
