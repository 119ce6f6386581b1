#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/inference/arrays.h"
#include "bindings/inference/released_gil.h"
#include "bindings/inference/run_control.h"
#include "bindings/inference/topics.h"
#include "inference/io_binding.h"

namespace py = pybind11;

namespace ortmodule::bindings {
namespace {

py::list inputs(IoBinding& binding) {
  py::list values;
  for (const std::optional<SharedValue>& value : binding.inputs())
    values.append(value ? py::cast(*value) : py::none());
  return values;
}

py::list outputs(IoBinding& binding) {
  py::list values;
  for (size_t i = 0; i < binding.output_count(); ++i) values.append(binding.output(i));
  return values;
}

py::list arrays(IoBinding& binding) {
  py::list made;
  for (size_t i = 0; i < binding.output_count(); ++i)
    made.append(to_arrays(binding.output_alone(i)));
  return made;
}

}  // namespace

void bind_io_binding(py::module_& m) {
  py::class_<IoBinding>(m, "IoBinding", "Inputs and outputs of a session bound to memory.")
      .def(py::init<InferenceSession&>(), py::arg("session"), py::keep_alive<1, 2>())
      .def("bind_input", &IoBinding::bind_input, py::arg("name"), py::arg("value"))
      .def(
          "bind_output",
          [](IoBinding& binding, const std::string& name, const SharedValue* place, int device) {
            if (place)
              binding.bind_output(name, place->tensor());
            else
              binding.bind_output(name, device);
          },
          py::arg("name"), py::arg("place") = py::none(), py::arg("device") = kOnHost)
      .def("clear_inputs", &IoBinding::clear_inputs)
      .def("clear_outputs", &IoBinding::clear_outputs)
      .def(
          "run",
          [](IoBinding& binding, const std::shared_ptr<const RunControl>& control) {
            const ReleasedGil released;
            binding.run(control ? &control->terminate : nullptr);
          },
          py::arg("control") = py::none())
      .def("inputs", &inputs, "The values that are bound, by input of the model.")
      .def("outputs", &outputs, "The values of the last run.")
      .def("arrays", &arrays, "The outputs of the last run as arrays that nothing else writes to.");
}

}  // namespace ortmodule::bindings
