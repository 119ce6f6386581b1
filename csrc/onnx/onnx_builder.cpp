#include "onnx/onnx_builder.h"

#include <cmath>
#include <cstring>

#include "base/element_value.h"
#include "base/error.h"

namespace ortmodule {
namespace {

template <class T>
std::string bytes_of(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

bool never_negative(const DimExpr& dim) { return dim.text().find('-') == std::string::npos; }

}  // namespace

std::string encode_scalar(double value, DType dtype) {
  switch (dtype) {
    case DType::Float32: return bytes_of(static_cast<float>(value));
    case DType::Float64: return bytes_of(value);
    case DType::Float16: return bytes_of(float16_bits(static_cast<float>(value)));
    case DType::BFloat16: return bytes_of(bfloat16_bits(static_cast<float>(value)));
    case DType::Int64: return bytes_of(static_cast<int64_t>(value));
    case DType::Int32: return bytes_of(static_cast<int32_t>(value));
    case DType::Int16: return bytes_of(static_cast<int16_t>(value));
    case DType::Int8: return bytes_of(static_cast<int8_t>(value));
    case DType::UInt8: return bytes_of(static_cast<uint8_t>(value));
    case DType::Bool: return bytes_of(static_cast<uint8_t>(value != 0.0));
    case DType::Complex64: return bytes_of(static_cast<float>(value)) + bytes_of(0.0f);
    case DType::Complex128: return bytes_of(value) + bytes_of(0.0);
    case DType::UInt16: return bytes_of(static_cast<uint16_t>(value));
    case DType::UInt32: return bytes_of(static_cast<uint32_t>(value));
    case DType::UInt64: return bytes_of(static_cast<uint64_t>(value));
    default: break;
  }
  throw InternalError("a constant without an element type");
}

bool is_exact_in(double value, DType dtype) {
  if (dtype != DType::Float16 && dtype != DType::BFloat16) return true;
  return std::isnan(value) || element_value(value, dtype) == static_cast<float>(value);
}

OnnxValue onnx_value(const std::string& name, DType dtype, const Dims& dims) {
  OnnxValue value{name, {OnnxType::Kind::Tensor, dtype, std::vector<OnnxDim>{}}};
  for (const DimExpr& dim : dims) {
    if (dim.is_constant())
      value.type.dims->emplace_back(dim.value());
    else
      value.type.dims->emplace_back(dim.text());
  }
  return value;
}

// Size expressions as arithmetic on int64 tensors of shape [1].
struct SizeAlgebra {
  using Result = std::string;
  OnnxBuilder& builder;

  std::string constant(int64_t value) { return builder.integers({value}); }
  std::string symbol(const std::string& name) { return builder.symbol(name); }
  std::string add(const std::string& a, const std::string& b) { return builder.add("Add", {a, b}); }
  std::string multiply(const std::string& a, const std::string& b) {
    return builder.add("Mul", {a, b});
  }
  std::string apply(DimAtom::Kind kind, const DimExpr& a, const DimExpr& b) {
    const std::string x = builder.size(a);
    const std::string y = builder.size(b);
    switch (kind) {
      case DimAtom::Kind::Max: return builder.add("Max", {x, y});
      case DimAtom::Kind::Min: return builder.add("Min", {x, y});
      case DimAtom::Kind::Mod: return builder.add("Mod", {x, y});
      default: break;
    }
    // ONNX rounds towards zero, so subtract a mod b first to get the floor for negative sizes.
    if (never_negative(a) && never_negative(b)) return builder.add("Div", {x, y});
    return builder.add("Div", {builder.add("Sub", {x, builder.add("Mod", {x, y})}), y});
  }
};

std::string OnnxBuilder::fresh_name(const std::string& base) {
  std::string name = base;
  for (int i = 1; !names_.insert(name).second; ++i) name = str(base, "_", i);
  return name;
}

OnnxNode& OnnxBuilder::add(std::string_view op, std::vector<std::string> inputs, OnnxAttrs attrs,
                           std::vector<std::string> outputs) {
  while (!inputs.empty() && inputs.back().empty()) inputs.pop_back();
  OnnxNode node;
  node.op = op;
  node.name = outputs.empty() ? fresh_name(str(scope_, "/", op)) : outputs.front();
  node.inputs = std::move(inputs);
  node.outputs = std::move(outputs);
  node.attrs = std::move(attrs);
  graph().nodes.push_back(std::move(node));
  return graph().nodes.back();
}

std::string OnnxBuilder::add(std::string_view op, std::vector<std::string> inputs,
                             OnnxAttrs attrs) {
  std::string name = fresh_name(str(scope_, "/", op));
  add(op, std::move(inputs), std::move(attrs), {name});
  return name;
}

std::string OnnxBuilder::constant(OnnxTensor tensor) {
  std::string key = str(name_of(tensor.dtype), tensor.dims.size(), ":");
  for (int64_t dim : tensor.dims) key += str(dim, ",");
  key += tensor.bytes.view();
  std::string& name = constants_[key];
  if (name.empty()) name = add("Constant", {}, {{"value", std::move(tensor)}});
  return name;
}

std::string OnnxBuilder::scalar(double value, DType dtype) {
  return constant({dtype, {}, encode_scalar(value, dtype)});
}

std::string OnnxBuilder::integers(const std::vector<int64_t>& values) {
  std::string bytes;
  for (int64_t value : values) bytes += bytes_of(value);
  return constant({DType::Int64, {static_cast<int64_t>(values.size())}, std::move(bytes)});
}

std::string OnnxBuilder::size(const DimExpr& dim) {
  if (dim.is_constant()) return integers({dim.value()});
  auto known = sizes_.find(dim.text());
  if (known != sizes_.end()) return known->second;
  SizeAlgebra algebra{*this};
  std::string name = dim.rebuild(algebra);
  sizes_[dim.text()] = name;
  return name;
}

std::string OnnxBuilder::size_scalar(const DimExpr& dim) {
  if (dim.is_constant()) return constant({DType::Int64, {}, bytes_of(dim.value())});
  return add("Squeeze", {size(dim), integers({0})});
}

std::string OnnxBuilder::sizes(const Dims& dims) {
  std::vector<std::string> parts;
  std::vector<int64_t> constants;
  auto flush = [&] {
    if (!constants.empty()) parts.push_back(integers(constants));
    constants.clear();
  };
  for (const DimExpr& dim : dims) {
    if (dim.is_constant()) {
      constants.push_back(dim.value());
      continue;
    }
    flush();
    parts.push_back(size(dim));
  }
  if (parts.empty()) return integers(constants);
  flush();
  if (parts.size() == 1) return parts[0];
  return add("Concat", std::move(parts), {{"axis", int64_t{0}}});
}

void OnnxBuilder::provide_dims(const std::string& name, const Dims& dims) {
  for (size_t i = 0; i < dims.size(); ++i) {
    std::vector<std::string> symbols;
    dims[i].collect_symbols(symbols);
    if (symbols.size() != 1) continue;
    const DimExpr s = DimExpr::symbol(symbols[0]);
    SymbolValues zero;
    zero.bind(symbols[0], 0);
    SymbolValues one;
    one.bind(symbols[0], 1);
    DimSource source{name, static_cast<int64_t>(i), 1, 0};
    if (!(dims[i] == s)) {
      if (dims[i].text().find_first_of("/%") != std::string::npos) continue;
      source.offset = dims[i].evaluate(zero);
      source.factor = dims[i].evaluate(one) - source.offset;
      if (source.factor == 0 || !(dims[i] == source.factor * s + source.offset)) continue;
    }
    const bool plain = source.factor == 1 && source.offset == 0;
    auto [known, is_new] = sources_.emplace(symbols[0], source);
    const bool known_plain = known->second.factor == 1 && known->second.offset == 0;
    if (!is_new && plain && !known_plain) known->second = source;
  }
}

std::string OnnxBuilder::symbol(const std::string& name) {
  auto known = sizes_.find(name);
  if (known != sizes_.end()) return known->second;
  auto found = sources_.find(name);
  std::string size;
  if (found == sources_.end()) {
    // Not the size of any tensor but an integer argument: it becomes an input of the model.
    size = fresh_name(name);
    graph().inputs.push_back(onnx_value(size, DType::Int64, {1}));
  } else {
    const DimSource& source = found->second;
    size = add("Shape", {source.tensor}, {{"start", source.axis}, {"end", source.axis + 1}});
    if (source.offset != 0) size = add("Sub", {size, integers({source.offset})});
    if (source.factor != 1) size = add("Div", {size, integers({source.factor})});
  }
  sizes_[name] = size;
  return size;
}

}  // namespace ortmodule
