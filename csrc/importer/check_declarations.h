// What a file declares beside its nodes: versions, inputs, functions and the forms of branches.
#pragma once

#include <cstdint>
#include <string_view>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// The last operator set of a domain that rules were written for, which a model has that names
/// none.
int64_t last_opset(std::string_view domain);

/// Throws Error for versions later than those that the rules were written for, two inputs or
/// functions of one name, an initializer that is not what its input declares, and branches that
/// cannot take each other's place. Stock onnxruntime refuses such files, too.
void check_declarations(const OnnxModel& model);

}  // namespace ortmodule
