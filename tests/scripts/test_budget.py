import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def budget():
    path = Path(__file__).parents[2] / "scripts" / "budget.py"
    spec = importlib.util.spec_from_file_location("budget", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["budget"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["budget"]


def test_python_functions_are_measured_from_def_to_end(budget):
    text = "x = 1\n\ndef f():\n    y = 2\n    return y\n\nclass A:\n    async def g(self):\n        pass\n"
    found = {(item.name, item.line, item.num_lines) for item in budget.python_functions(text)}
    assert found == {("f", 3, 3), ("g", 8, 2)}


CPP = """\
// not a { function() {
#define BLOCK(x) { x }
namespace {
struct Row {
  int width() const { return width_; }
  int width_ = 0;
};
const int table[] = {1, 2};

template <class T>
int longer(T value,
           const char* text = "}") {
  if (value) {
    return '{';
  }
  return 0;
}
}  // namespace
"""


def test_cpp_functions_are_found_by_their_braces(budget):
    found = {(item.name, item.num_lines) for item in budget.cpp_functions(CPP)}
    assert found == {
        ("int width() const", 1),
        ("template <class T> int longer(T value, const char* text = )", 8),
    }
