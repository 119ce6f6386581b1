#include "session/symbol_binder.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace ortmodule {

SymbolBinder::SymbolBinder(const ExportedPiece& piece, size_t argument_count, const Graph& joint)
    : piece_(piece), argument_count_(argument_count) {
  std::vector<std::string> names;
  joint.collect_symbols(names);
  for (const Dims& strides : piece_.output_strides)
    for (const DimExpr& stride : strides) stride.collect_symbols(names);
  for (const BoundInput& bound : piece_.arguments)
    if (bound.kind == BoundInput::Kind::Symbol)
      is_planned_.push_back(std::ranges::find(names, bound.symbol) != names.end());
}

SymbolValues SymbolBinder::bind_all(const CallShapes& call) const { return bind(call, false); }

Signature SymbolBinder::signature_of(const CallShapes& call) const {
  Signature signature{key_of(call), {}};
  PlanRequest& request = signature.request;
  request.symbols = bind(call, true);
  for (const LayoutView& layout : call.arguments)
    request.arguments.push_back({Sizes(layout.sizes.begin(), layout.sizes.end()),
                                 Sizes(layout.strides.begin(), layout.strides.end()), 0});
  for (const Dims& strides : piece_.output_strides)
    request.output_strides.push_back(evaluate(strides, request.symbols));
  return signature;
}

SymbolValues SymbolBinder::bind(const CallShapes& call, bool only_planned) const {
  SymbolValues values;
  size_t next = 0;
  for (const BoundInput& bound : piece_.arguments) {
    if (bound.kind != BoundInput::Kind::Symbol) continue;
    ORTM_CHECK(next < call.symbols.size(), "[forward] symbol ", bound.symbol,
               " must have a value, but found only ", call.symbols.size(), " values");
    if (!only_planned || is_planned_[next]) values.bind(bound.symbol, call.symbols[next]);
    ++next;
  }
  const auto& inputs = piece_.graph->inputs();
  ORTM_CHECK(call.arguments.size() == argument_count_, "[forward] there must be ", argument_count_,
             " arguments, but found ", call.arguments.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = *inputs[i].value;
    const std::span<const int64_t> sizes = call.arguments[i].sizes;
    ORTM_CHECK(sizes.size() == value.rank(), "[forward] argument ", value.name, " must have rank ",
               value.rank(), ", but found ", sizes.size());
    for (size_t d = 0; d < sizes.size(); ++d) {
      const DimExpr& dim = value.dims[d];
      std::string symbol;
      if (dim.is_constant()) {
        ORTM_CHECK(dim.value() == sizes[d], "[forward] argument ", value.name, " must have size ",
                   dim, " in dim ", d, ", but found ", sizes[d]);
      } else if (dim.is_symbol(&symbol)) {
        values.bind(symbol, sizes[d]);
      }
    }
  }
  return values;
}

}  // namespace ortmodule
