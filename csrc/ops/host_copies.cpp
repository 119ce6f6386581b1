// y = CopyToHost(x), z = CopyToDevice(y): a value that backward reads is in memory of the host in
// between. They stand in lowered graphs only, where the memory optimizer has asked for them.

#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

REGISTER_OP(CopyToHost, {.domain = "com.microsoft",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .infer = infer_same_as_input,
                         .onnx = {export_identity}});

REGISTER_OP(CopyToDevice, {.domain = "com.microsoft",
                           .inputs = {"x"},
                           .outputs = {"y"},
                           .infer = infer_same_as_input,
                           .onnx = {export_identity}});

}  // namespace
}  // namespace ortmodule
