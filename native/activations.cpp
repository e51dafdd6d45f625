#include "activations.hpp"

namespace foredraft {
namespace {

// Weights a thread takes at once: few enough to stay in a core's cache while several tiles of rows pass, enough to outweigh the claim.
constexpr size_t kTaskBytes = 48 << 10;

size_t panels_per_task(const Matrix& w) { return w.panel_bytes >= kTaskBytes ? 1 : kTaskBytes / w.panel_bytes; }

}  // namespace

void Activations::fill(const Kernels& kernels, ThreadPool& pool, const float* x, size_t rows, size_t inputs) {
    const size_t groups = inputs / kGroup, count = (rows + kernels.tile - 1) / kernels.tile;
    q_.resize(rows * inputs), scale_.resize(rows * groups), sum_.resize(rows * groups), halves_.resize(2 * rows * groups);
    tiles_.clear();
    for (size_t i = 0, first = 0; i < count; i++) {  // even tiles: nine rows are five and four, not eight and one
        const size_t size = rows / count + (i < rows % count);
        tiles_.push_back({(int)size, groups, q_.data() + first * inputs, scale_.data() + first * groups, sum_.data() + first * groups,
                          halves_.data() + 2 * first * groups, x + first * inputs});
        first += size;
    }
    const auto quantise = [&](size_t i, size_t) {
        const Tile& t = tiles_[i];
        for (size_t m = 0; m < (size_t)t.rows; m++)
            kernels.quantise(t.x + m * inputs, inputs, m, t.rows, const_cast<int8_t*>(t.q), const_cast<float*>(t.scale),
                             const_cast<float*>(t.sum), const_cast<int16_t*>(t.halves));
    };
    pool.run(count, quantise);
}

void multiply(const Kernels& kernels, ThreadPool& pool, const Activations& x, const std::vector<Product>& products) {
    size_t tasks = 0;
    for (const Product& p : products) tasks += (p.weights->panels() + panels_per_task(*p.weights) - 1) / panels_per_task(*p.weights);
    pool.run(tasks, [&](size_t task, size_t) {
        for (const Product& p : products) {
            const size_t step = panels_per_task(*p.weights), panels = p.weights->panels(), count = (panels + step - 1) / step;
            if (task < count) {
                const size_t begin = task * step, end = begin + step < panels ? begin + step : panels;
                kernels.gemm(*p.weights, begin, end, x.tiles().data(), x.tiles().size(), p.y, p.row_stride);
                return;
            }
            task -= count;
        }
    });
}

}  // namespace foredraft
