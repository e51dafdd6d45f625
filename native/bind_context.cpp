#include "bind_context.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "context.hpp"

void bind_context(nanobind::module_& m) {
    using namespace foredraft;
    using namespace nanobind::literals;
    using Tokens = std::vector<int32_t>;
    namespace nb = nanobind;
    nb::class_<ContextMemory>(m, "ContextMemory")
        .def(nb::init<size_t>(), "contexts"_a = size_t(1) << 19)
        .def("add", [](ContextMemory& memory, const Tokens& tokens) { memory.add(tokens.data(), tokens.size()); }, "tokens"_a)
        .def("open", [](std::shared_ptr<ContextMemory> memory) { return ContextModel(std::move(memory)); });
    nb::class_<ContextModel>(m, "ContextModel")
        .def(nb::init<std::shared_ptr<ContextMemory>>(), "memory"_a = nb::none())
        .def("add", [](ContextModel& model, const Tokens& tokens) { model.add(tokens.data(), tokens.size()); }, "tokens"_a)
        .def(
            "tree",
            [](const ContextModel& model, const Tokens& tail, int64_t most, int64_t depth, double floor) {
                ContextTree tree = model.tree(tail, most, depth, floor);
                return nb::make_tuple(tree.tokens, tree.parents, tree.chances);
            },
            "tail"_a, "most"_a, "depth"_a, "floor"_a);
}
