// The Python module: NumPy arrays in, NumPy arrays out, the GIL released while a pass runs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "bind_context.hpp"
#include "bind_pick.hpp"
#include "model.hpp"

namespace nb = nanobind;
using namespace foredraft;

namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntTable = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<nb::numpy, float>;
using Tensor = std::tuple<std::string, std::string, size_t, size_t, size_t>;

FloatArray make_floats(std::initializer_list<size_t> shape) {
    size_t size = 1;
    for (size_t n : shape) size *= n;
    float* data = new float[size ? size : 1];
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return FloatArray(data, shape.size(), shape.begin(), owner);
}

template <class T> T field(const nb::dict& config, const char* name) {
    if (!config.contains(name)) throw std::invalid_argument(std::string("the configuration lacks '") + name + "'");
    try {
        return nb::cast<T>(config[name]);
    } catch (const std::bad_cast&) {
        throw std::invalid_argument(std::string("the configuration's '") + name + "' has the wrong type or sign");
    }
}

Config read_config(const nb::dict& d) {
    Config c{field<size_t>(d, "dim"), field<size_t>(d, "heads"), field<size_t>(d, "kv_heads"), field<size_t>(d, "head_dim"),
             field<size_t>(d, "ff"), field<size_t>(d, "vocab"), field<float>(d, "eps"), field<float>(d, "embed_scale"),
             field<float>(d, "attn_scale"), Activation::silu, field<bool>(d, "rope_interleaved"), {}};
    const auto activation = field<std::string>(d, "activation");
    if (activation != "silu" && activation != "gelu") throw std::invalid_argument("unknown activation '" + activation + "'");
    if (activation == "gelu") c.activation = Activation::gelu;
    for (const auto& [window, base, scale] : field<std::vector<std::tuple<size_t, double, double>>>(d, "layers"))
        c.layers.push_back({window, base, scale});
    return c;
}

void create(Model* self, const nb::dict& config, const std::vector<Tensor>& tensors, const std::string& path, size_t kv_blocks,
            const std::string& kv_type, size_t threads, const std::string& isa, std::optional<nb::callable> progress,
            const std::string& quant) {
    if (kv_type != "f16" && kv_type != "f32") throw std::invalid_argument("kv_type must be f16 or f32, not '" + kv_type + "'");
    if (!quant.empty() && quant != "q4") throw std::invalid_argument("quant must be q4 or empty, not '" + quant + "'");
    const Config read = read_config(config);
    std::vector<TensorSpec> specs;
    for (const auto& [name, type, rows, cols, offset] : tensors) specs.push_back({name, type, rows, cols, offset});
    Model::Progress report;
    if (progress)
        report = [&](size_t done, size_t total) {
            nb::gil_scoped_acquire gil;
            (*progress)(done, total);
        };
    nb::gil_scoped_release released;
    new (self) Model(read, specs, path, kv_blocks, kv_type == "f16", threads, isa, report, !quant.empty());
}

nb::tuple forward(Model& m, Ints tokens, Ints parents, Ints owners, Ints lengths, IntTable tables, Ints wanted, Ints layers,
                  Ints hidden_rows, std::optional<Ints> head_panels) {
    const size_t n = tokens.size();
    if (parents.size() != n || owners.size() != n) throw std::invalid_argument("tokens, parents and owners differ in length");
    if (tables.shape(0) != lengths.size()) throw std::invalid_argument("lengths and tables differ in their number of sequences");
    const int32_t* panels = head_panels ? head_panels->data() : nullptr;
    const size_t panel_count = head_panels ? head_panels->size() : 0;
    FloatArray logits = make_floats({wanted.size(), m.logit_width(panels, panel_count)});
    FloatArray hidden = make_floats({layers.size(), hidden_rows.size(), m.config().dim});
    {
        nb::gil_scoped_release released;
        m.forward({tokens.data(), parents.data(), owners.data(), n, lengths.data(), tables.data(), lengths.size(), tables.shape(1)},
                  {wanted.data(), wanted.size(), logits.data(), panels, panel_count, layers.data(), hidden_rows.data(), layers.size(),
                   hidden_rows.size(), hidden.data()});
    }
    return nb::make_tuple(logits, hidden);
}

void move(Model& m, Ints source, Ints target) {
    if (source.size() != target.size()) throw std::invalid_argument("source and target differ in length");
    nb::gil_scoped_release released;
    m.move(source.data(), target.data(), source.size());
}

FloatArray dequantised(const Model& m, const std::string& name) {
    const Matrix& matrix = m.matrix(name);
    FloatArray out = make_floats({matrix.outputs, matrix.inputs});
    nb::gil_scoped_release released;
    for (size_t row = 0; row < matrix.outputs; row++) m.dequantise(name, row, out.data() + row * matrix.inputs);
    return out;
}

// The memory that bandwidth is measured on: read end to end by all threads of a model's pool, on pages like its weights'.
class Sweep {
public:
    explicit Sweep(size_t bytes) : buffer_(bytes / 4096 * 4096) {
        for (size_t i = 0; i < buffer_.size(); i += 4096) buffer_.data()[i] = 1;  // pages that were never written are all one page
    }
    double seconds(Model& m) {
        nb::gil_scoped_release released;
        return m.sweep(buffer_);
    }

private:
    Buffer buffer_;
};

std::vector<std::string> isa_names() {
    const char* names[5];
    const size_t count = available_kernels(names);
    return {names, names + count};
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "foredraft's native core: a pass over rows, the pick, and memory bandwidth.";
    m.def("isa_names", &isa_names, "Instruction sets this machine can run, best first.");
    nb::class_<Model>(m, "Model")
        .def("__init__", &create, nb::arg("config"), nb::arg("tensors"), nb::arg("path"), nb::arg("kv_blocks"), nb::arg("kv_type") = "f16",
             nb::arg("threads") = 1, nb::arg("isa") = "", nb::arg("progress") = nb::none(), nb::arg("quant") = "")
        // Without conversion: a number that is no int32 would silently become another one.
        .def("forward", &forward, nb::arg("tokens").noconvert(), nb::arg("parents").noconvert(), nb::arg("owners").noconvert(),
             nb::arg("lengths").noconvert(), nb::arg("tables").noconvert(), nb::arg("wanted").noconvert(),
             nb::arg("hidden_layers").noconvert(), nb::arg("hidden_rows").noconvert(), nb::arg("head_panels").noconvert() = nb::none())
        .def("move", &move, nb::arg("source").noconvert(), nb::arg("target").noconvert())
        .def("dequantise", &dequantised, nb::arg("name"))
        .def_prop_rw("threads", &Model::threads, &Model::set_threads)
        .def_prop_ro("weight_bytes", &Model::weight_bytes)
        .def_prop_ro("head_bytes", &Model::head_bytes)
        .def_prop_ro("kv_bytes_per_block", &Model::kv_block_bytes)
        .def_prop_ro("isa", &Model::isa);
    nb::class_<Sweep>(m, "Sweep").def(nb::init<size_t>(), nb::arg("size")).def("seconds", &Sweep::seconds, nb::arg("model"));
    bind_pick(m);
    bind_context(m);
}
