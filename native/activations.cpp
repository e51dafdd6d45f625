#include "activations.hpp"

namespace foredraft {
namespace {

// Weights that pass under several tiles of rows at once: few enough to stay in a core's cache.
constexpr size_t kCachedBytes = 48 << 10;
// The least a thread takes at once: enough to outweigh the claim.
constexpr size_t kTaskBytes = 16 << 10;

struct Task {
    const Product* product;
    size_t begin, end;  // panels
};

size_t panels_in(size_t bytes, const Matrix& w) { return w.panel_bytes >= bytes ? 1 : bytes / w.panel_bytes; }

// Long runs first, ever shorter ones towards the end: at a run's end what was prefetched belongs to somebody else, so runs should be long;
// the last ones should be short, so that the threads finish together.
std::vector<Task> share_out(const std::vector<Product>& products, size_t threads) {
    size_t left = 0;
    for (const Product& p : products) left += p.weights->panels() * p.weights->panel_bytes;
    std::vector<Task> tasks;
    for (const Product& p : products) {
        for (size_t begin = 0, end; begin < p.weights->panels(); begin = end) {
            const size_t share = left / (2 * threads), step = panels_in(share > kTaskBytes ? share : kTaskBytes, *p.weights);
            end = begin + step < p.weights->panels() ? begin + step : p.weights->panels();
            left -= (end - begin) * p.weights->panel_bytes;
            tasks.push_back({&p, begin, end});
        }
    }
    return tasks;
}

}  // namespace

void Activations::fill(const Kernels& kernels, ThreadPool& pool, const float* x, size_t rows, size_t inputs) {
    const size_t groups = inputs / kGroup, count = (rows + kernels.tile - 1) / kernels.tile;
    q_.resize(rows * inputs), scale_.resize(rows * groups), sum_.resize(rows * groups), halves_.resize(2 * rows * groups);
    offsets_.resize(2 * rows * groups);
    tiles_.clear();
    for (size_t i = 0, first = 0; i < count; i++) {  // even tiles: nine rows are five and four, not eight and one
        const size_t size = rows / count + (i < rows % count);
        tiles_.push_back({(int)size, groups, q_.data() + first * inputs, scale_.data() + first * groups, sum_.data() + first * groups,
                          halves_.data() + 2 * first * groups, offsets_.data() + 2 * first * groups, x + first * inputs});
        first += size;
    }
    const auto quantise = [&](size_t i, size_t) {
        const Tile& t = tiles_[i];
        for (size_t m = 0; m < (size_t)t.rows; m++)
            kernels.quantise(t.x + m * inputs, inputs, m, t.rows, const_cast<int8_t*>(t.q), const_cast<float*>(t.scale),
                             const_cast<float*>(t.sum), const_cast<int16_t*>(t.halves));
        for (size_t m = 0; m < 2 * groups * t.rows; m++) const_cast<int32_t*>(t.offsets)[m] = -32 * t.halves[m];
    };
    pool.run(count, quantise);
}

void multiply(const Kernels& kernels, ThreadPool& pool, const Activations& x, const std::vector<Product>& products) {
    const std::vector<Task> tasks = share_out(products, pool.threads());
    pool.run(tasks.size(), [&](size_t i, size_t) {
        const Product& p = *tasks[i].product;
        const size_t step = x.tiles().size() > 1 ? panels_in(kCachedBytes, *p.weights) : tasks[i].end - tasks[i].begin;
        for (size_t begin = tasks[i].begin; begin < tasks[i].end; begin += step) {
            const size_t end = begin + step < tasks[i].end ? begin + step : tasks[i].end;
            kernels.gemm(*p.weights, begin, end, x.tiles().data(), x.tiles().size(), p.y, p.row_stride);
        }
    });
}

}  // namespace foredraft
