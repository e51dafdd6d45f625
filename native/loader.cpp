// Loading: every tensor of the file is converted to the kernel's form in parallel, and the file's pages are released as they are used.
#include <stdexcept>

#include "model.hpp"
#include "rope.hpp"

namespace foredraft {

struct Model::Loader {
    Model& model;
    const MappedFile& file;
    const std::vector<TensorSpec>& tensors;
    const Progress& progress;
    size_t used = 0, done = 0, total = 0;

    static size_t file_bytes(const TensorSpec& t) {
        const TypeInfo& type = info(t.type.c_str());
        if (t.inputs == 0 || t.outputs == 0 || t.inputs % type.block_inputs || t.inputs > (size_t(1) << 28) || t.outputs > (size_t(1) << 32))
            throw std::invalid_argument("tensor " + t.name + " has an impossible shape for " + t.type);
        return t.inputs / type.block_inputs * type.file_block_bytes * t.outputs;
    }
    static size_t memory_bytes(const TensorSpec& t) {
        const size_t panels = (t.outputs + kPanel - 1) / kPanel;
        return (panels * panel_bytes(info(t.type.c_str()).type, t.inputs) + kLine - 1) / kLine * kLine;
    }
    const TensorSpec* find(const std::string& name) const {
        for (const TensorSpec& t : tensors)
            if (t.name == name) return &t;
        return nullptr;
    }
    const TensorSpec& get(const std::string& name, size_t outputs, size_t inputs) const {
        const TensorSpec* t = find(name);
        if (!t) throw std::invalid_argument("tensor " + name + " is missing");
        if (t->outputs != outputs || t->inputs != inputs)
            throw std::invalid_argument("tensor " + name + " is " + std::to_string(t->outputs) + " x " + std::to_string(t->inputs) +
                                        ", expected " + std::to_string(outputs) + " x " + std::to_string(inputs));
        return *t;
    }

    void allocate() {
        size_t bytes = 0;
        for (const TensorSpec& t : tensors) {
            file.at(t.offset, file_bytes(t));
            total += file_bytes(t);
            bytes += memory_bytes(t);  // vectors need none: what is not used is never touched
        }
        // Room past the end: kernels prefetch ahead.
        model.weights_ = std::make_unique<Buffer>(bytes + 8192);
        if (progress) progress(0, total);
    }

    Matrix matrix(const std::string& name, size_t outputs, size_t inputs) {
        for (const auto& known : model.matrices_)
            if (known.first == name) return known.second;
        const TensorSpec& t = get(name, outputs, inputs);
        const TypeInfo& type = info(t.type.c_str());
        uint8_t* data = model.weights_->data() + used;
        used += memory_bytes(t);
        Matrix m{type.type, outputs, inputs, panel_bytes(type.type, inputs), data};
        const size_t row_bytes = inputs / type.block_inputs * type.file_block_bytes, step = 16;
        const uint8_t* source = file.at(t.offset, file_bytes(t));
        model.pool_->run((m.panels() + step - 1) / step, [&](size_t i, size_t) {
            const size_t begin = i * step, end = begin + step < m.panels() ? begin + step : m.panels();
            const size_t last = end * kPanel < outputs ? end * kPanel : outputs;
            convert(m, source, data, begin, end);
            file.release(source + begin * kPanel * row_bytes, (last - begin * kPanel) * row_bytes);
        });
        file.release(source, file_bytes(t));
        model.matrices_.emplace_back(name, m);
        report(t);
        return m;
    }

    std::vector<float> vector(const std::string& name, size_t size) {
        const TensorSpec& t = get(name, 1, size);
        const TypeInfo& type = info(t.type.c_str());
        if (type.quantised) throw std::invalid_argument("tensor " + name + " is " + t.type + ", expected F32, F16 or BF16");
        std::vector<uint8_t> panel(panel_bytes(type.type, size));
        std::vector<float> out(size);
        Matrix m{type.type, 1, size, panel.size(), panel.data()};
        convert(m, file.at(t.offset, file_bytes(t)), panel.data(), 0, 1);
        foredraft::dequantise(m, 0, out.data());
        report(t);
        return out;
    }
    std::vector<float> optional(const std::string& name, size_t size) { return find(name) ? vector(name, size) : std::vector<float>{}; }

    void report(const TensorSpec& t) {
        done += file_bytes(t);
        if (progress) progress(done, total);
    }

    size_t rope_set(const LayerConfig& layer, const std::vector<float>& factors) {
        std::vector<double> set = rope_frequencies(model.config_.head_dim, layer.rope_base, layer.rope_scale, factors);
        for (size_t i = 0; i < model.ropes_.size(); i++)
            if (model.ropes_[i] == set) return i;
        model.ropes_.push_back(std::move(set));
        return model.ropes_.size() - 1;
    }

    Layer layer(size_t i, const std::vector<float>& factors) {
        const Config& c = model.config_;
        const std::string p = std::to_string(i) + ".";
        const size_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
        Layer l;
        l.window = c.layers[i].window, l.rope = rope_set(c.layers[i], factors);
        l.attn_norm = vector(p + "attn_norm", c.dim), l.ffn_norm = vector(p + "ffn_norm", c.dim);
        l.q = matrix(p + "q", q, c.dim), l.k = matrix(p + "k", kv, c.dim), l.v = matrix(p + "v", kv, c.dim), l.o = matrix(p + "o", c.dim, q);
        l.q_bias = optional(p + "q_bias", q), l.k_bias = optional(p + "k_bias", kv), l.v_bias = optional(p + "v_bias", kv);
        l.q_norm = optional(p + "q_norm", c.head_dim), l.k_norm = optional(p + "k_norm", c.head_dim);
        l.attn_post_norm = optional(p + "attn_post_norm", c.dim), l.ffn_post_norm = optional(p + "ffn_post_norm", c.dim);
        l.gate = matrix(p + "gate", c.ff, c.dim), l.up = matrix(p + "up", c.ff, c.dim), l.down = matrix(p + "down", c.dim, c.ff);
        return l;
    }

    void load() {
        const Config& c = model.config_;
        allocate();
        const bool tied = !find("head");
        model.embed_ = matrix("embed", c.vocab, c.dim);
        model.head_ = tied ? model.embed_ : matrix("head", c.vocab, c.dim);
        const std::vector<float> factors = optional("rope_factors", c.head_dim / 2);
        for (float factor : factors)
            if (!(factor > 0.0f)) throw std::invalid_argument("tensor rope_factors holds a factor that is not positive");
        for (size_t i = 0; i < c.layers.size(); i++) model.layers_.push_back(layer(i, factors));
        model.norm_ = vector("norm", c.dim);
        for (const TensorSpec& t : tensors)
            if (tied || t.name != "embed") model.weight_bytes_ += file_bytes(t);
    }
};

namespace {

void check(const Config& c, size_t kv_blocks) {
    for (size_t size : {c.dim, c.heads, c.kv_heads, c.head_dim, c.ff, c.vocab})
        if (size > INT32_MAX) throw std::invalid_argument("no model has a size of " + std::to_string(size));
    if (kv_blocks > INT32_MAX / kBlock) throw std::invalid_argument("too many KV blocks: " + std::to_string(kv_blocks));  // slots are int32
    const auto lanes = [](size_t n) { return n > 0 && n % 16 == 0; };
    if (!lanes(c.dim) || !lanes(c.ff) || !lanes(c.head_dim))
        throw std::invalid_argument("dim, ff and head_dim must be multiples of 16 (" + std::to_string(c.dim) + ", " + std::to_string(c.ff) +
                                    ", " + std::to_string(c.head_dim) + ")");
    if (!c.heads || !c.kv_heads || c.heads % c.kv_heads) throw std::invalid_argument("heads must be a multiple of kv_heads");
    if (!c.vocab || c.layers.empty()) throw std::invalid_argument("a model needs a vocabulary and layers");
}

}  // namespace

Model::Model(const Config& config, const std::vector<TensorSpec>& tensors, const std::string& path, size_t kv_blocks, bool half_kv,
             size_t threads, const std::string& isa, const Progress& progress)
    : config_(config), kernels_(choose_kernels(isa.c_str())), kv_blocks_(kv_blocks), half_kv_(half_kv) {
    check(config_, kv_blocks);
    FloatMode mode;
    const MappedFile file(path);
    set_threads(threads);
    Loader{*this, file, tensors, progress}.load();
    cache_ = std::make_unique<Buffer>(kv_blocks * kv_block_bytes());
}

void Model::set_threads(size_t threads) {
    if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must be 1 to 1024, not " + std::to_string(threads));
    std::lock_guard<std::mutex> lock(mutex_);
    pool_ = std::make_unique<ThreadPool>(threads);
}

}  // namespace foredraft
