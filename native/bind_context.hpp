#pragma once
#include <nanobind/nanobind.h>

// ContextModel and ContextMemory (src/foredraft/drafters/suffix.py is their caller).
void bind_context(nanobind::module_& m);
