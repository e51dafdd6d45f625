// Loading: every tensor of the file is converted to the kernel's form in parallel, and the file's pages are released as they are used. A
// model that is to draft may be requantised on the way.
#include <stdexcept>

#include "model.hpp"
#include "requantise.hpp"
#include "rope.hpp"

namespace foredraft {

struct Model::Loader {
    Model& model;
    const MappedFile& file;
    const std::vector<TensorSpec>& tensors;
    const Progress& progress;
    bool requantised;
    size_t used = 0, done = 0, total = 0;

    static size_t file_bytes(const TensorSpec& t) {
        const TypeInfo& type = info(t.type.c_str());
        if (t.inputs == 0 || t.outputs == 0 || t.inputs % type.block_inputs || t.inputs > (size_t(1) << 28) || t.outputs > (size_t(1) << 32))
            throw std::invalid_argument("tensor " + t.name + " has an impossible shape for " + t.type);
        return row_bytes(type.type, t.inputs) * t.outputs;
    }
    static size_t memory_bytes(const TensorSpec& t, Type type) {
        const size_t panels = (t.outputs + kPanel - 1) / kPanel;
        return (panels * panel_bytes(type, t.inputs) + kLine - 1) / kLine * kLine;
    }
    // What a matrix becomes that may be requantised.
    Type wanted_type(const TensorSpec& t) const {
        const Type type = info(t.type.c_str()).type;
        return requantised && shrinks(type, t.inputs) ? Type::Q4_0 : type;
    }
    // The tied head that is no longer the embedding: of another type than its tensor, which is loaded twice.
    const TensorSpec* second_head() const {
        const TensorSpec* t = find("head") ? nullptr : find("embed");
        return t && wanted_type(*t) != info(t->type.c_str()).type ? t : nullptr;
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
            bytes += memory_bytes(t, info(t.type.c_str()).type);  // too much is no harm: what is not used is never touched
        }
        if (const TensorSpec* t = second_head()) total += file_bytes(*t), bytes += memory_bytes(*t, Type::Q4_0);
        // Room past the end: kernels prefetch ahead.
        model.weights_ = std::make_unique<Buffer>(bytes + (size_t(32) << 10));
        if (progress) progress(0, total);
    }

    Matrix matrix(const std::string& name, size_t outputs, size_t inputs, bool kept = false) {
        const TensorSpec& t = get(name, outputs, inputs);
        return place(name, t, kept ? info(t.type.c_str()).type : wanted_type(t));
    }

    Matrix place(const std::string& name, const TensorSpec& t, Type wanted) {
        for (const auto& known : model.matrices_)
            if (known.first == name) return known.second;
        const TypeInfo& type = info(t.type.c_str());
        uint8_t* data = model.weights_->data() + used;
        used += memory_bytes(t, wanted);
        Matrix m{wanted, t.outputs, t.inputs, panel_bytes(wanted, t.inputs), data};
        const size_t bytes = row_bytes(type.type, t.inputs), step = 16;
        const uint8_t* source = file.at(t.offset, file_bytes(t));
        std::vector<Scratch> scratch(wanted != type.type ? model.threads() : 0, Scratch(type.type, t.inputs));
        model.pool_->run((m.panels() + step - 1) / step, [&](size_t i, size_t worker) {
            const size_t begin = i * step, end = begin + step < m.panels() ? begin + step : m.panels();
            const size_t last = end * kPanel < t.outputs ? end * kPanel : t.outputs;
            if (scratch.empty())
                convert(m, source, data, begin, end);
            else
                requantise(model.kernels_, m, type.type, source, data, begin, end, scratch[worker]);
            file.release(source + begin * kPanel * bytes, (last - begin * kPanel) * bytes);
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
        model.weight_bytes_ += file_bytes(t);
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
        // Keys and values are few, and all rows that follow depend on them: they stay as they are in the file.
        l.q = matrix(p + "q", q, c.dim), l.k = matrix(p + "k", kv, c.dim, true), l.v = matrix(p + "v", kv, c.dim, true);
        l.o = matrix(p + "o", c.dim, q);
        l.q_bias = optional(p + "q_bias", q), l.k_bias = optional(p + "k_bias", kv), l.v_bias = optional(p + "v_bias", kv);
        l.q_norm = optional(p + "q_norm", c.head_dim), l.k_norm = optional(p + "k_norm", c.head_dim);
        l.attn_post_norm = optional(p + "attn_post_norm", c.dim), l.ffn_post_norm = optional(p + "ffn_post_norm", c.dim);
        l.gate = matrix(p + "gate", c.ff, c.dim), l.up = matrix(p + "up", c.ff, c.dim), l.down = matrix(p + "down", c.dim, c.ff);
        return l;
    }

    void load() {
        const Config& c = model.config_;
        allocate();
        const TensorSpec &embed = get("embed", c.vocab, c.dim), *second = second_head();
        const bool tied = !find("head");
        model.embed_ = matrix("embed", c.vocab, c.dim, true);
        model.head_ = second ? place("head", embed, Type::Q4_0) : tied ? model.embed_ : matrix("head", c.vocab, c.dim);
        const std::vector<float> factors = optional("rope_factors", c.head_dim / 2);
        for (float factor : factors)
            if (!(factor > 0.0f)) throw std::invalid_argument("tensor rope_factors holds a factor that is not positive");
        for (size_t i = 0; i < c.layers.size(); i++) model.layers_.push_back(layer(i, factors));
        model.norm_ = vector("norm", c.dim);
        for (const auto& [name, m] : model.matrices_)
            if (name != "embed" || (tied && !second)) model.weight_bytes_ += m.outputs * row_bytes(m.type, m.inputs);
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
             size_t threads, const std::string& isa, const Progress& progress, bool requantised)
    : config_(config), kernels_(choose_kernels(isa.c_str())), kv_blocks_(kv_blocks), half_kv_(half_kv) {
    check(config_, kv_blocks);
    FloatMode mode;
    const MappedFile file(path);
    set_threads(threads);
    Loader{*this, file, tensors, progress, requantised}.load();
    cache_ = std::make_unique<Buffer>(kv_blocks * kv_block_bytes());
}

void Model::set_threads(size_t threads) {
    if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must be 1 to 1024, not " + std::to_string(threads));
    std::lock_guard<std::mutex> lock(mutex_);
    pool_ = std::make_unique<ThreadPool>(threads);
}

}  // namespace foredraft
