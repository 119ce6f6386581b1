// Stands where programs include onnxruntime's header from.
#pragma once

#include <ortmodule/onnxruntime_cxx_api.h>
