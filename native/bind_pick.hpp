#pragma once
#include <nanobind/nanobind.h>

// PickSettings and Picker (src/foredraft/models/native_pick.py is their caller).
void bind_pick(nanobind::module_& m);
