// A transformer loaded from a GGUF file, and its one operation: a pass over rows.
//
// A row is (owner, token, position, parent). Prompt processing, plain decoding, checking a chain or a tree, and a batch of requests are
// the same call with other rows. What is computed for a row depends on its own path only (docs/numerics.md).
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "activations.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "threads.hpp"

namespace foredraft {

struct LayerConfig {
    size_t window;  // positions a row sees, itself included; 0 is all
    double rope_base, rope_scale;
};

struct Config {
    size_t dim, heads, kv_heads, head_dim, ff, vocab;
    float eps, embed_scale, attn_scale;
    Activation activation;
    bool rope_interleaved;
    std::vector<LayerConfig> layers;
};

struct TensorSpec {
    std::string name, type;
    size_t outputs, inputs, offset;  // a vector has one output
};

struct Layer {
    std::vector<float> attn_norm, q_bias, k_bias, v_bias, q_norm, k_norm, attn_post_norm, ffn_norm, ffn_post_norm;
    Matrix q, k, v, o, gate, up, down;
    size_t window, rope;  // rope: index of the layer's set of frequencies
};

// One pass: n rows of s sequences.
struct Rows {
    const int32_t *tokens, *parents, *owners;  // [n]; a parent is a row of this pass, or -1: the sequence's last kept token
    size_t count;
    const int32_t *lengths, *tables;  // [s] kept tokens, [s][blocks] block ids
    size_t sequences, blocks;
};

struct Wanted {
    const int32_t* logit_rows;  // rows whose logits are computed
    size_t logit_count;
    float* logits;  // [logit_count][logit_width(panels)]
    const int32_t* panels;  // the head's panels that are computed, rising; none: all
    size_t panel_count;
    const int32_t *layers, *hidden_rows;
    size_t layer_count, hidden_count;
    float* hidden;  // [layer_count][hidden_count][dim]: the residual stream after these layers
};

class Model {
public:
    using Progress = std::function<void(size_t done, size_t total)>;
    // Converts every tensor from the file, `requantised` to 4 bits where that is less (native/requantise.hpp); throws std::invalid_argument
    // for a tensor that is missing, misshapen or outside the file.
    Model(const Config& config, const std::vector<TensorSpec>& tensors, const std::string& path, size_t kv_blocks, bool half_kv,
          size_t threads, const std::string& isa, const Progress& progress, bool requantised);

    // Throws std::invalid_argument, having computed nothing, where the rows are inconsistent.
    void forward(const Rows& rows, const Wanted& wanted);
    // Logits of a row: the vocabulary's, or 16 for each of these panels of the head. Throws std::invalid_argument where these cannot be.
    size_t logit_width(const int32_t* panels, size_t count) const;
    // Copies keys and values between physical slots (block * 64 + offset), in order.
    void move(const int32_t* source, const int32_t* target, size_t count);
    void dequantise(const std::string& name, size_t row, float* out) const;
    const Matrix& matrix(const std::string& name) const;

    const Config& config() const { return config_; }
    const char* isa() const { return kernels_.name; }
    size_t threads() const { return pool_->threads(); }
    void set_threads(size_t threads);
    // Seconds to read `memory` once, end to end, on all threads.
    double sweep(const Buffer& memory);
    size_t weight_bytes() const { return weight_bytes_; }  // that one token reads: the file's bytes, or what is left of them
    size_t head_bytes() const { return head_.outputs * row_bytes(head_.type, head_.inputs); }  // the head's part of them
    size_t kv_block_bytes() const;

private:
    struct Geometry;  // where each row of a pass lies and what it sees
    struct Space;     // a pass's buffers
    struct Loader;

    void attention_block(Space& space, const Geometry& geometry, size_t layer);
    void feed_forward_block(Space& space, size_t layer);
    void prepare_heads(Space& space, const Geometry& geometry, size_t layer);
    void attend(Space& space, const Geometry& geometry, size_t layer);
    void normalise(const float* x, size_t rows, const std::vector<float>& weight, float* y);
    void add_residual(Space& space, const float* y, const std::vector<float>& post_norm);
    void write_logits(Space& space, const Wanted& wanted);
    void multiply_panels(const Activations& x, const Wanted& wanted);
    void copy_hidden(const Space& space, size_t layer, const Wanted& wanted) const;
    uint8_t* head_cache(size_t layer, size_t kv_head) const;
    size_t element_bytes() const { return half_kv_ ? 2 : 4; }

    Config config_;
    const Kernels& kernels_;
    std::unique_ptr<ThreadPool> pool_;
    std::unique_ptr<Buffer> weights_, cache_;
    std::vector<Layer> layers_;
    std::vector<std::vector<double>> ropes_;
    std::vector<float> norm_;
    Matrix embed_, head_;
    std::vector<std::pair<std::string, Matrix>> matrices_;
    size_t kv_blocks_, weight_bytes_ = 0;
    bool half_kv_;
    std::mutex mutex_;
};

}  // namespace foredraft
