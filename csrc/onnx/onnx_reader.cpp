#include "onnx/onnx_reader.h"

#include <algorithm>
#include <array>

#include "onnx/mapped_file.h"
#include "onnx/onnx_fingerprint.h"
#include "onnx/onnx_read_context.h"
#include "onnx/onnx_tensor_reader.h"
#include "onnx/onnx_types.h"

namespace ortmodule {
namespace {

using Context = OnnxReadContext;

void read_graph(Context& c, std::string_view message, OnnxGraph& to);

// The standard domain has two names.
std::string domain_of(std::string name) { return name == "ai.onnx" ? "" : name; }

std::pair<std::string, std::string> read_entry(const Context& c, std::string_view message) {
  std::pair<std::string, std::string> entry;
  c.walk(message, [&](const WireField& field) {
    if (field.number == 1) entry.first = c.text(field);
    if (field.number == 2) entry.second = c.text(field);
  });
  return entry;
}

// ---- types -------------------------------------------------------------------------------------

OnnxDim read_dim(const Context& c, std::string_view message, std::string& denotation) {
  OnnxDim dim;
  c.walk(message, [&](const WireField& field) {
    if (field.number == 3) denotation = c.text(field);
    if (field.number == 1) {
      const int64_t size = c.integer(field);
      dim = size < 0 ? OnnxDim() : OnnxDim(size);
    }
    if (field.number == 2) {
      std::string name = c.text(field);
      dim = name.empty() ? OnnxDim() : OnnxDim(std::move(name));
    }
  });
  return dim;
}

int read_element_type(const Context& c, const WireField& field) {
  const int64_t number = c.integer(field);
  const bool known =
      number >= 0 && number < 1000 && (number == 0 || find_onnx_element(static_cast<int>(number)));
  if (!known) c.fail(str("element type must be one of ONNX's, but found ", number));
  return static_cast<int>(number);
}

void read_tensor_type(Context& c, std::string_view message, OnnxType& to) {
  c.walk(message, [&](const WireField& field) {
    if (field.number == 1) to.element_type = read_element_type(c, field);
    if (field.number != 2) return;
    to.dims.emplace();
    c.walk(c.bytes(field), [&](const WireField& dim) {
      if (dim.number != 1) return;
      std::string denotation;
      c.grow(*to.dims, read_dim(c, c.bytes(dim), denotation));
      if (denotation.empty()) return;
      while (to.denotations.size() + 1 < to.dims->size()) c.grow(to.denotations);
      c.grow(to.denotations, std::move(denotation));
    });
  });
  to.dtype = onnx_dtype(to.element_type);
}

OnnxType read_type(Context& c, std::string_view message);

// A type of elements, which is field `element_field` of the message, and of a map's keys.
void read_container_type(Context& c, std::string_view message, int element_field, OnnxType& to) {
  c.walk(message, [&](const WireField& field) {
    if (field.number == element_field) {
      c.charge(sizeof(OnnxType));
      to.element = std::make_shared<const OnnxType>(read_type(c, c.bytes(field)));
    } else if (field.number == 1) {
      to.element_type = read_element_type(c, field);
    }
  });
  to.dtype = onnx_dtype(to.element_type);
}

OnnxType read_type(Context& c, std::string_view message) {
  const Context::Level level(c);
  OnnxType type;
  std::string rest;
  const auto start = [&](OnnxType::Kind kind) {
    type = OnnxType();
    type.kind = kind;
  };
  c.walk(message, [&](const WireField& field) {
    switch (field.number) {
      case 1: start(OnnxType::Kind::Tensor); return read_tensor_type(c, c.bytes(field), type);
      case 8: start(OnnxType::Kind::SparseTensor); return read_tensor_type(c, c.bytes(field), type);
      case 4:
        start(OnnxType::Kind::Sequence);
        return read_container_type(c, c.bytes(field), 1, type);
      case 9:
        start(OnnxType::Kind::Optional);
        return read_container_type(c, c.bytes(field), 1, type);
      case 5: start(OnnxType::Kind::Map); return read_container_type(c, c.bytes(field), 2, type);
      default: append_field(rest, field); return;
    }
  });
  type.rest = c.rest(std::move(rest));
  return type;
}

void check_element_type(const Context& c, const OnnxType& type) {
  if (type.kind == OnnxType::Kind::Tensor && type.element_type == 0)
    c.fail("element type must be one of ONNX's, but is undefined");
  if (type.element) check_element_type(c, *type.element);
}

OnnxValue read_value(Context& c, std::string_view message) {
  OnnxValue value;
  const auto place = c.within_value(value.name);
  std::string rest;
  c.walk(message, [&](const WireField& field) {
    switch (field.number) {
      case 1: value.name = c.text(field); return;
      case 2: value.type = read_type(c, c.bytes(field)); return check_element_type(c, value.type);
      default: append_field(rest, field); return;
    }
  });
  value.rest = c.rest(std::move(rest));
  return value;
}

// ---- attributes --------------------------------------------------------------------------------

// The fields of an AttributeProto that hold values, by their AttributeType.
constexpr std::array<int, 15> kValueFields = {0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 22, 23, 14, 15};

int type_of_field(int number) {
  for (size_t type = 1; type < kValueFields.size(); ++type)
    if (kValueFields[type] == number) return static_cast<int>(type);
  return 0;
}

class AttrReader {
 public:
  AttrReader(Context& c, std::string_view message) : c_(c), message_(message) {
    c.walk(message, [&](const WireField& field) {
      if (field.number == 1) name_ = c.text(field);
      if (field.number == 20) type_ = c.integer(field);
      if (field.number == 21) reference_ = c.text(field);
      if (type_of_field(field.number) != 0) note_value(field);
    });
    if (name_.empty()) c.fail("an attribute must have a name");
    if (type_ == 0) type_ = type_of_field(value_field_);  // old files have no types
    if (type_ <= 0 || type_ >= static_cast<int64_t>(kValueFields.size()))
      fail(str("must be of a type of ONNX, but found ", type_));
    const int expected = kValueFields[static_cast<size_t>(type_)];
    if (value_field_ != 0 && value_field_ != expected)
      fail(str("of type ", type_, " must have its value in field ", expected, ", but found it in ",
               value_field_));
    value_field_ = expected;
  }

  std::pair<std::string, OnnxAttr> read() { return {name_, value()}; }

 private:
  template <class T>
  using Shared = std::shared_ptr<const T>;

  [[noreturn]] void fail(const std::string& message) const {
    c_.fail(str("attribute '", name_, "' ", message));
  }

  void note_value(const WireField& field) {
    if (field.kind == WireField::Kind::Bytes && field.bytes.empty() && is_packed(field.number))
      return;
    if (value_field_ != 0 && value_field_ != field.number)
      fail(str("must have one value, but found fields ", value_field_, " and ", field.number));
    value_field_ = field.number;
  }
  static bool is_packed(int number) { return number == 7 || number == 8; }

  OnnxAttr value() {
    if (!reference_.empty())
      return OnnxAttrReference{std::move(reference_), static_cast<int>(type_)};
    switch (value_field_) {
      case 2: return static_cast<double>(last<float>([&](auto& f) { return c_.number(f); }));
      case 3: return last<int64_t>([&](auto& f) { return c_.integer(f); });
      case 4: return last<std::string>([&](auto& f) { return std::string(c_.bytes(f)); });
      case 5: return one<OnnxTensor>([&](auto& f) { return tensor(f); });
      case 6: return one<Shared<OnnxGraph>>([&](auto& f) { return graph(f); });
      case 7: return floats();
      case 8: return integers();
      case 9: return list<std::string>([&](auto& f) { return std::string(c_.bytes(f)); });
      case 10: return list<OnnxTensor>([&](auto& f) { return tensor(f); });
      case 11: return list<Shared<OnnxGraph>>([&](auto& f) { return graph(f); });
      case 14: return one<OnnxType>([&](auto& f) { return read_type(c_, c_.bytes(f)); });
      case 15: return list<OnnxType>([&](auto& f) { return read_type(c_, c_.bytes(f)); });
      case 22: return one<OnnxTensor>([&](auto& f) { return sparse_tensor(f); });
      default: return list<OnnxTensor>([&](auto& f) { return sparse_tensor(f); });
    }
  }

  template <class Visit>
  void each(Visit visit) {
    c_.walk(message_, [&](const WireField& field) {
      if (field.number == value_field_) visit(field);
    });
  }
  // A value that may be absent, which means 0.
  template <class T, class Read>
  T last(Read read) {
    T value{};
    each([&](const WireField& field) { value = read(field); });
    return value;
  }
  template <class T, class Read>
  T one(Read read) {
    std::vector<T> values = list<T>(read);
    if (values.size() != 1) fail(str("must have one value, but found ", values.size()));
    return std::move(values[0]);
  }
  template <class T, class Read>
  std::vector<T> list(Read read) {
    std::vector<T> values;
    each([&](const WireField& field) { c_.grow(values, T(read(field))); });
    return values;
  }
  std::vector<int64_t> integers() {
    std::vector<int64_t> values;
    each([&](const WireField& field) {
      c_.integers(field, [&](int64_t value) { c_.grow(values, value); });
    });
    return values;
  }
  std::vector<double> floats() {
    std::vector<double> values;
    each([&](const WireField& field) {
      c_.floats(field, [&](float value) { c_.grow(values, static_cast<double>(value)); });
    });
    return values;
  }

  OnnxTensor tensor(const WireField& field) { return read_onnx_tensor(c_, c_.bytes(field)).tensor; }
  OnnxTensor sparse_tensor(const WireField& field) {
    return read_onnx_sparse_tensor(c_, c_.bytes(field)).tensor;
  }
  Shared<OnnxGraph> graph(const WireField& field) {
    c_.charge(sizeof(OnnxGraph));
    auto graph = std::make_shared<OnnxGraph>();
    read_graph(c_, c_.bytes(field), *graph);
    return graph;
  }

  Context& c_;
  std::string_view message_;
  std::string name_;
  std::string reference_;
  int64_t type_ = 0;     // AttributeType
  int value_field_ = 0;  // number of the field that holds the value
};

// ---- nodes, graphs, functions
// --------------------------------------------------------------------

OnnxNode read_node(Context& c, std::string_view message) {
  OnnxNode node;
  const auto place = c.within(node);
  std::string rest;
  c.walk(message, [&](const WireField& field) {
    switch (field.number) {
      case 1: c.grow(node.inputs, c.text(field)); return;
      case 2: c.grow(node.outputs, c.text(field)); return;
      case 3: node.name = c.text(field); return;
      case 4: node.op = c.text(field); return;
      case 5: c.grow(node.attrs, AttrReader(c, c.bytes(field)).read()); return;
      case 7: node.domain = domain_of(c.text(field)); return;
      case 8: node.overload = c.text(field); return;
      case 9: c.grow(node.metadata, read_entry(c, c.bytes(field))); return;
      default: append_field(rest, field); return;
    }
  });
  node.rest = c.rest(std::move(rest));
  if (node.op.empty()) c.fail("a node must have an op");
  return node;
}

void read_initializer(Context& c, OnnxInitializer initializer, OnnxGraph& to) {
  if (initializer.name.empty()) c.fail("an initializer must have a name");
  c.grow(to.initializers, std::move(initializer));
}

void read_graph(Context& c, std::string_view message, OnnxGraph& to) {
  const Context::Level level(c);
  std::string rest;
  c.walk(message, [&](const WireField& field) {
    switch (field.number) {
      case 1: c.grow(to.nodes, read_node(c, c.bytes(field))); return;
      case 2: to.name = c.text(field); return;
      case 5: {
        const bool main = c.depth() == 1;
        return read_initializer(c, read_onnx_tensor(c, c.bytes(field), main), to);
      }
      case 11: c.grow(to.inputs, read_value(c, c.bytes(field))); return;
      case 12: c.grow(to.outputs, read_value(c, c.bytes(field))); return;
      case 13: c.grow(to.values, read_value(c, c.bytes(field))); return;
      case 15: {
        OnnxInitializer sparse = read_onnx_sparse_tensor(c, c.bytes(field));
        if (c.depth() == 1 && c.given().initializers.count(sparse.name))
          c.fail(str("a replaced initializer must be dense, but '", sparse.name, "' is sparse"));
        return read_initializer(c, std::move(sparse), to);
      }
      default: append_field(rest, field); return;
    }
  });
  to.rest = c.rest(std::move(rest));
  // The lists stay as long as the session, and up to half of them would be empty.
  to.nodes.shrink_to_fit();
  to.initializers.shrink_to_fit();
  to.values.shrink_to_fit();
}

OnnxOpset read_opset(const Context& c, std::string_view message) {
  OnnxOpset opset;
  c.walk(message, [&](const WireField& field) {
    if (field.number == 1) opset.domain = domain_of(c.text(field));
    if (field.number == 2) opset.version = c.integer(field);
  });
  return opset;
}

OnnxFunction read_function(Context& c, std::string_view message) {
  OnnxFunction function;
  std::string rest;
  c.walk(message, [&](const WireField& field) {
    switch (field.number) {
      case 1: function.name = c.text(field); return;
      case 4: c.grow(function.inputs, c.text(field)); return;
      case 5: c.grow(function.outputs, c.text(field)); return;
      case 6: c.grow(function.attrs, c.text(field)); return;
      case 7: c.grow(function.nodes, read_node(c, c.bytes(field))); return;
      case 9: c.grow(function.opsets, read_opset(c, c.bytes(field))); return;
      case 10: function.domain = domain_of(c.text(field)); return;
      case 11: c.grow(function.defaults, AttrReader(c, c.bytes(field)).read()); return;
      case 13: function.overload = c.text(field); return;
      default: append_field(rest, field); return;
    }
  });
  function.rest = c.rest(std::move(rest));
  if (function.name.empty()) c.fail("a function must have a name");
  return function;
}

std::string fingerprint(const Context& c, std::string_view graph) {
  OnnxFingerprint hash;
  for (int part : {1, 11, 12})  // nodes, inputs, outputs, as written
    c.walk(graph, [&](const WireField& field) {
      if (field.number == part) hash.add(field.bytes);
    });
  return hash.text();
}

// The bytes of all fields with that number.
std::vector<std::string_view> parts(const Context& c, std::string_view message, int number) {
  std::vector<std::string_view> found;
  c.walk(message, [&](const WireField& field) {
    if (field.number == number) found.push_back(c.bytes(field));
  });
  return found;
}

void read_denotations(Context& c, std::string_view value, OnnxFacts& to) {
  std::string name;
  c.walk(value, [&](const WireField& field) {
    if (field.number == 1) name = c.text(field);
  });
  for (std::string_view type : parts(c, value, 2))
    for (std::string_view tensor : parts(c, type, 1))
      for (std::string_view shape : parts(c, tensor, 2)) {
        size_t axis = 0;
        for (std::string_view dim : parts(c, shape, 1)) {
          c.walk(dim, [&](const WireField& field) {
            if (field.number == 3) to.denotations[name][axis] = c.text(field);
          });
          ++axis;
        }
      }
}

void read_facts(Context& c, std::string_view message, OnnxFacts& to) {
  c.walk(message, [&](const WireField& field) {
    switch (field.number) {
      case 4: to.domain = c.text(field); return;
      case 5: to.version = c.integer(field); return;
      case 6: to.doc = c.text(field); return;
      case 7:
        return c.walk(c.bytes(field), [&](const WireField& part) {
          if (part.number == 10) to.graph_doc = c.text(part);
          if (part.number == 11) read_denotations(c, c.bytes(part), to);
        });
      default: return;
    }
  });
}

OnnxModel read_model(Context& c, std::string_view message, OnnxFacts* facts) {
  OnnxModel model;
  std::string_view graph;
  std::string written;
  std::string rest;
  bool has_graph = false;
  const auto read_field = [&](const WireField& field) {
    switch (field.number) {
      case 1: model.ir_version = c.integer(field); return;
      case 2: model.producer = c.text(field); return;
      case 7:
        if (std::exchange(has_graph, true)) c.fail("a model must have one graph, but found two");
        graph = c.bytes(field);
        return read_graph(c, graph, model.graph);
      case 8: c.grow(model.opsets, read_opset(c, c.bytes(field))); return;
      case 14: {
        auto entry = read_entry(c, c.bytes(field));
        if (entry.first == OnnxFingerprint::kKey)
          written = std::move(entry.second);
        else
          c.grow(model.metadata, std::move(entry));
        return;
      }
      case 25: c.grow(model.functions, read_function(c, c.bytes(field))); return;
      default: append_field(rest, field); return;
    }
  };
  if (Reason reason = walk_fields(message, read_field))
    c.fail(str("must be an ONNX model: ", *reason));
  if (!has_graph) c.fail("must be an ONNX model, but found no graph");
  if (facts) read_facts(c, message, *facts);
  model.rest = c.rest(std::move(rest));
  model.intact = !written.empty() && written == fingerprint(c, graph);
  return model;
}

}  // namespace

OnnxModel read_onnx_model(const std::string& path, const OnnxSubstitutes& given, OnnxFacts* facts,
                          MappedFiles* files) {
  Reason why_not;
  const auto file = MappedFile::open(path, why_not);
  if (!file) throw Error(str("[onnx] ", path, ": ", *why_not));
  Context context({file, file->bytes(), true}, path, OnnxExternalData::beside(path), given);
  OnnxModel model = read_model(context, file->bytes(), facts);
  if (files) {
    *files = context.external().files();
    files->insert(files->begin(), file);
  }
  return model;
}

OnnxModel parse_onnx_model(const SharedBytes& bytes, const std::string& name,
                           const std::string& folder, const OnnxSubstitutes& given,
                           OnnxFacts* facts) {
  Context context(bytes, name, OnnxExternalData(folder), given);
  return read_model(context, bytes.view(), facts);
}

}  // namespace ortmodule
