// The names of onnxruntime's C++ API on top of ortmodule/inference.h, so that programs written for
// it compile and link with this library (C++17). What differs is in docs/inference.md.
#pragma once

#include <ortmodule/ort/api.h>
#include <ortmodule/ort/env.h>
#include <ortmodule/ort/memory.h>
#include <ortmodule/ort/session.h>
#include <ortmodule/ort/session_options.h>
#include <ortmodule/ort/type_info.h>
#include <ortmodule/ort/value.h>

// onnxruntime's header brings these along, and programs rely on it.
#include <array>
#include <cstring>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>
