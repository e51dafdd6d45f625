// A pass, layer by layer.
#include "model.hpp"

#include <chrono>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "geometry.hpp"
#include "rope.hpp"

namespace foredraft {
namespace {

// Queries that share one read of the keys, and rows that go together: enough to amortise it, few enough for their scores to stay in cache.
constexpr size_t kQueriesTogether = 48, kRowsTogether = 8;

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

}  // namespace

struct Model::Space {
    size_t rows;
    std::vector<float> x, normal, qkv, heads, gate, up, y;
    std::vector<std::vector<float>> cosine, sine;  // [rope set][row * head_dim / 2]
    std::vector<std::vector<float>> scores;        // [worker]
    Activations activations;

    Space(const Config& c, size_t rows, size_t workers)
        : rows(rows), x(rows * c.dim), normal(rows * c.dim), qkv(rows * (c.heads + 2 * c.kv_heads) * c.head_dim),
          heads(rows * c.heads * c.head_dim), gate(rows * c.ff), up(rows * c.ff), y(rows * c.dim), scores(workers) {}
};

size_t Model::kv_block_bytes() const {
    return config_.layers.size() * config_.kv_heads * 2 * kBlock * config_.head_dim * element_bytes();
}

// Layout: [layer][block][kv head][keys, values].
uint8_t* Model::head_cache(size_t layer, size_t kv_head) const {
    const size_t head = 2 * kBlock * config_.head_dim * element_bytes();
    return cache_->data() + (layer * kv_blocks_ * config_.kv_heads + kv_head) * head;
}

const Matrix& Model::matrix(const std::string& name) const {
    for (const auto& known : matrices_)
        if (known.first == name) return known.second;
    throw std::invalid_argument("the model has no matrix '" + name + "'");
}

void Model::dequantise(const std::string& name, size_t row, float* out) const { foredraft::dequantise(matrix(name), row, out); }

void Model::normalise(const float* x, size_t rows, const std::vector<float>& weight, float* y) {
    const size_t n = weight.size();
    const auto one = [&](size_t i) { kernels_.rms_norm(x + i * n, weight.data(), n, config_.eps, y + i * n); };
    if (rows <= kRowsTogether)
        for (size_t i = 0; i < rows; i++) one(i);
    else
        pool_->run(rows, [&](size_t i, size_t) { one(i); });
}

void Model::add_residual(Space& space, const float* y, const std::vector<float>& post_norm) {
    if (!post_norm.empty()) {
        normalise(y, space.rows, post_norm, space.normal.data());
        y = space.normal.data();
    }
    kernels_.add(y, space.x.data(), space.x.size());
}

// Biases, head norms and rope; keys and values go to the cache, rounded to its type, before any row reads them.
void Model::prepare_heads(Space& space, const Geometry& geometry, size_t layer) {
    const Layer& l = layers_[layer];
    const Config& c = config_;
    const size_t dim = c.head_dim, q = c.heads * dim, kv = c.kv_heads * dim, half = dim / 2, bytes = element_bytes();
    const size_t block_stride = c.kv_heads * 2 * kBlock * dim * bytes;
    const auto one = [&](size_t i) {
        float* row = space.qkv.data() + i * (q + 2 * kv);
        if (!l.q_bias.empty()) kernels_.add(l.q_bias.data(), row, q);
        if (!l.k_bias.empty()) kernels_.add(l.k_bias.data(), row + q, kv);
        if (!l.v_bias.empty()) kernels_.add(l.v_bias.data(), row + q + kv, kv);
        for (size_t h = 0; h < c.heads + c.kv_heads; h++) {
            const std::vector<float>& norm = h < c.heads ? l.q_norm : l.k_norm;
            float* head = row + h * dim;
            if (!norm.empty()) kernels_.rms_norm(head, norm.data(), dim, c.eps, head);
            kernels_.rope(head, &space.cosine[l.rope][i * half], &space.sine[l.rope][i * half], half, c.rope_interleaved);
        }
        kernels_.scale(c.attn_scale, row, q);
        const size_t block = (size_t)geometry.slot[i] / kBlock, offset = (size_t)geometry.slot[i] % kBlock;
        for (size_t h = 0; h < c.kv_heads; h++) {
            uint8_t* keys = head_cache(layer, h) + block * block_stride;
            kernels_.store(row + q + h * dim, dim, kBlock, half_kv_, keys + offset * bytes);
            kernels_.store(row + q + kv + h * dim, dim, 1, half_kv_, keys + (kBlock + offset) * dim * bytes);
        }
    };
    if (space.rows <= kRowsTogether)
        for (size_t i = 0; i < space.rows; i++) one(i);
    else
        pool_->run(space.rows, [&](size_t i, size_t) { one(i); });
}

void Model::attend(Space& space, const Geometry& geometry, size_t layer) {
    const Config& c = config_;
    const size_t dim = c.head_dim, width = (c.heads + 2 * c.kv_heads) * dim, group = c.heads / c.kv_heads;
    std::vector<RowKeys> keys;
    for (size_t i = 0; i < space.rows; i++) keys.push_back(geometry.keys(i, layers_[layer].window));
    // Rows of one sequence that follow each other share one read of its keys.
    std::vector<size_t> starts;
    const size_t most = kQueriesTogether / group < 1 ? 1 : kQueriesTogether / group < kRowsTogether ? kQueriesTogether / group : kRowsTogether;
    for (size_t i = 0; i < space.rows; i++)
        if (starts.empty() || i - starts.back() == most || geometry.owners[i] != geometry.owners[i - 1]) starts.push_back(i);
    starts.push_back(space.rows);
    // Fewer units than threads: the query heads of a KV head are split, and its keys read once for each part.
    const size_t units = (starts.size() - 1) * c.kv_heads, wanted = (pool_->threads() + units - 1) / units;
    size_t parts = wanted < group ? wanted : group;
    const size_t limit = (group + kQueriesTogether - 1) / kQueriesTogether;
    parts = parts < limit ? limit : parts;
    pool_->run(units * parts, [&](size_t task, size_t worker) {
        const size_t unit = task / parts, part = task % parts, kv_head = unit % c.kv_heads;
        const size_t first = starts[unit / c.kv_heads], last = starts[unit / c.kv_heads + 1];
        const float* queries[2 * kQueriesTogether];
        float* outputs[2 * kQueriesTogether];
        const RowKeys* rows[2 * kQueriesTogether];
        size_t count = 0, low = SIZE_MAX, high = 0;
        for (size_t i = first; i < last; i++) {
            low = keys[i].low < low ? keys[i].low : low, high = keys[i].position >= high ? keys[i].position + 1 : high;
            for (size_t h = group * part / parts; h < group * (part + 1) / parts; h++, count++) {
                queries[count] = space.qkv.data() + i * width + (kv_head * group + h) * dim;
                outputs[count] = space.heads.data() + (i * c.heads + kv_head * group + h) * dim;
                rows[count] = &keys[i];
            }
        }
        const size_t base = low / kBlock * kBlock, stride = round_up(high - base, kBlock);
        if (space.scores[worker].size() < count * stride) space.scores[worker].resize(count * stride);
        kernels_.attend({queries, outputs, rows, count, dim, head_cache(layer, kv_head), c.kv_heads * 2 * kBlock * dim * element_bytes(),
                         half_kv_, space.scores[worker].data(), base, stride});
    });
}

void Model::attention_block(Space& space, const Geometry& geometry, size_t layer) {
    const Layer& l = layers_[layer];
    const Config& c = config_;
    const size_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim, width = q + 2 * kv;
    normalise(space.x.data(), space.rows, l.attn_norm, space.normal.data());
    space.activations.fill(kernels_, *pool_, space.normal.data(), space.rows, c.dim);
    float* out = space.qkv.data();
    multiply(kernels_, *pool_, space.activations, {{&l.q, out, width}, {&l.k, out + q, width}, {&l.v, out + q + kv, width}});
    prepare_heads(space, geometry, layer);
    attend(space, geometry, layer);
    space.activations.fill(kernels_, *pool_, space.heads.data(), space.rows, q);
    multiply(kernels_, *pool_, space.activations, {{&l.o, space.y.data(), c.dim}});
    add_residual(space, space.y.data(), l.attn_post_norm);
}

void Model::feed_forward_block(Space& space, size_t layer) {
    const Layer& l = layers_[layer];
    const Config& c = config_;
    normalise(space.x.data(), space.rows, l.ffn_norm, space.normal.data());
    space.activations.fill(kernels_, *pool_, space.normal.data(), space.rows, c.dim);
    multiply(kernels_, *pool_, space.activations, {{&l.gate, space.gate.data(), c.ff}, {&l.up, space.up.data(), c.ff}});
    const auto activate = [&](size_t i, size_t) {
        float* gate = space.gate.data() + i * c.ff;
        kernels_.gate(gate, space.up.data() + i * c.ff, c.ff, c.activation, gate);
    };
    pool_->run(space.rows, activate);
    space.activations.fill(kernels_, *pool_, space.gate.data(), space.rows, c.ff);
    multiply(kernels_, *pool_, space.activations, {{&l.down, space.y.data(), c.dim}});
    add_residual(space, space.y.data(), l.ffn_post_norm);
}

void Model::copy_hidden(const Space& space, size_t layer, const Wanted& wanted) const {
    const size_t dim = config_.dim;
    for (size_t l = 0; l < wanted.layer_count; l++)
        for (size_t i = 0; (size_t)wanted.layers[l] == layer && i < wanted.hidden_count; i++)
            std::memcpy(wanted.hidden + (l * wanted.hidden_count + i) * dim, space.x.data() + (size_t)wanted.hidden_rows[i] * dim, dim * 4);
}

void Model::write_logits(Space& space, const Wanted& wanted) {
    const size_t dim = config_.dim, count = wanted.logit_count;
    if (count == 0) return;
    std::vector<float> chosen(count * dim);
    for (size_t i = 0; i < count; i++)
        std::memcpy(chosen.data() + i * dim, space.x.data() + (size_t)wanted.logit_rows[i] * dim, dim * 4);
    normalise(chosen.data(), count, norm_, chosen.data());
    space.activations.fill(kernels_, *pool_, chosen.data(), count, dim);
    if (wanted.panel_count > 0) return multiply_panels(space.activations, wanted);
    multiply(kernels_, *pool_, space.activations, {{&head_, wanted.logits, config_.vocab}});
}

// Each panel is a matrix of its own, whose outputs come beside those of the one before.
void Model::multiply_panels(const Activations& x, const Wanted& wanted) {
    const size_t width = wanted.panel_count * kPanel, step = 8, padding = head_.panels() * kPanel - head_.outputs;
    pool_->run((wanted.panel_count + step - 1) / step, [&](size_t task, size_t) {
        const size_t end = (task + 1) * step < wanted.panel_count ? (task + 1) * step : wanted.panel_count;
        for (size_t i = task * step; i < end; i++) {
            const size_t panel = (size_t)wanted.panels[i], left = head_.outputs - panel * kPanel;
            const uint8_t* data = head_.data + panel * head_.panel_bytes;
            const Matrix part{head_.type, left < kPanel ? left : kPanel, head_.inputs, head_.panel_bytes, data};
            kernels_.gemm(part, 0, 1, x.tiles().data(), x.tiles().size(), wanted.logits + i * kPanel, width);
        }
    });
    if ((size_t)wanted.panels[wanted.panel_count - 1] + 1 < head_.panels()) return;
    for (size_t row = 1; row <= wanted.logit_count; row++)  // what the last panel has beyond the vocabulary
        for (size_t c = 1; c <= padding; c++) wanted.logits[row * width - c] = -std::numeric_limits<float>::infinity();
}

size_t Model::logit_width(const int32_t* panels, size_t count) const {
    for (size_t i = 0; i < count; i++)
        if (panels[i] < 0 || (size_t)panels[i] >= head_.panels() || (i > 0 && panels[i] <= panels[i - 1]))
            throw std::invalid_argument("panels of the head must rise from 0 to " + std::to_string(head_.panels() - 1) + " at most: " +
                                        std::to_string(panels[i]));
    return count > 0 ? count * kPanel : config_.vocab;
}

void Model::forward(const Rows& rows, const Wanted& wanted) {
    std::lock_guard<std::mutex> lock(mutex_);
    FloatMode mode;
    const Geometry geometry(rows, config_.vocab, kv_blocks_);
    const auto inside = [](const int32_t* list, size_t count, size_t limit, const char* what) {
        for (size_t i = 0; i < count; i++)
            if (list[i] < 0 || (size_t)list[i] >= limit) throw std::invalid_argument(what + std::to_string(list[i]));
    };
    inside(wanted.logit_rows, wanted.logit_count, rows.count, "logits are wanted of a row that is not there: ");
    inside(wanted.hidden_rows, wanted.hidden_count, rows.count, "hidden states are wanted of a row that is not there: ");
    inside(wanted.layers, wanted.layer_count, layers_.size(), "hidden states are wanted after a layer that is not there: ");
    logit_width(wanted.panels, wanted.panel_count);
    if (rows.count == 0) return;

    Space space(config_, rows.count, pool_->threads());
    const size_t half = config_.head_dim / 2;
    for (const std::vector<double>& frequencies : ropes_) {
        space.cosine.emplace_back(rows.count * half), space.sine.emplace_back(rows.count * half);
        for (size_t i = 0; i < rows.count; i++)
            rope_angles(frequencies, geometry.position[i], &space.cosine.back()[i * half], &space.sine.back()[i * half]);
    }
    pool_->run(rows.count, [&](size_t i, size_t) {
        float* x = space.x.data() + i * config_.dim;
        foredraft::dequantise(embed_, (size_t)rows.tokens[i], x);
        if (config_.embed_scale != 1.0f) kernels_.scale(config_.embed_scale, x, config_.dim);
    });
    for (size_t layer = 0; layer < layers_.size(); layer++) {
        attention_block(space, geometry, layer);
        feed_forward_block(space, layer);
        copy_hidden(space, layer, wanted);
    }
    write_logits(space, wanted);
}

double Model::sweep(const Buffer& memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    constexpr size_t piece = size_t(1) << 20;
    std::atomic<uint64_t> seen{0};  // keeps the reads from being optimised away
    const auto start = std::chrono::steady_clock::now();
    pool_->run((memory.size() + piece - 1) / piece, [&](size_t i, size_t) {
        const size_t bytes = memory.size() - i * piece < piece ? memory.size() - i * piece : piece;
        seen ^= kernels_.sweep(memory.data() + i * piece, bytes);
    });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Model::move(const int32_t* source, const int32_t* target, size_t count) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < count; i++)
        for (int32_t slot : {source[i], target[i]})
            if (slot < 0 || (size_t)slot >= kv_blocks_ * kBlock) throw std::invalid_argument("no such slot: " + std::to_string(slot));
    const size_t dim = config_.head_dim, bytes = element_bytes(), block_stride = config_.kv_heads * 2 * kBlock * dim * bytes;
    for (size_t i = 0; i < count; i++)
        for (size_t l = 0; l < layers_.size(); l++)
            for (size_t h = 0; h < config_.kv_heads; h++) {
                const size_t from = (size_t)source[i], to = (size_t)target[i];
                const uint8_t* a = head_cache(l, h) + from / kBlock * block_stride;
                uint8_t* b = head_cache(l, h) + to / kBlock * block_stride;
                for (size_t d = 0; d < dim; d++)
                    std::memcpy(b + (d * kBlock + to % kBlock) * bytes, a + (d * kBlock + from % kBlock) * bytes, bytes);
                std::memmove(b + (kBlock + to % kBlock) * dim * bytes, a + (kBlock + from % kBlock) * dim * bytes, dim * bytes);
            }
}

}  // namespace foredraft
