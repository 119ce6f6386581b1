// Rewrites of a pointwise group before it has places in memory: roundings that a store does anyway
// are left out, and quantizing and dequantizing become one loop each, from and to bytes.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "kernels/cpu/pointwise_quantize.h"
#include "kernels/cpu/pointwise_values.h"

namespace ortmodule {
inline namespace ORTM_ISA {

int VirtualGroup::new_value(Compute type) {
  values.emplace_back();
  values.back().type = type;
  if (type == Compute::I64) values.back().stored = integers;
  return static_cast<int>(values.size()) - 1;
}

int VirtualGroup::literal_value(double number, Compute type) {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].literal && values[i].type == type && values[i].number == number &&
        std::signbit(values[i].number) == std::signbit(number))
      return static_cast<int>(i);
  const int value = new_value(type);
  values.back().literal = true;
  values.back().number = number;
  return value;
}

const VirtualOp* VirtualGroup::op_of(int value) const {
  for (const VirtualOp& op : ops)
    if (op.out == value) return &op;
  return nullptr;
}

bool VirtualGroup::is_read_by(int value, std::ptrdiff_t readers) const {
  return std::count_if(ops.begin(), ops.end(), [&](const VirtualOp& op) {
           return std::find(op.in.begin(), op.in.end(), value) != op.in.end();
         }) == readers;
}

int VirtualGroup::float_of_byte(int value, DType byte) const {
  const VirtualOp* rounded = op_of(value);
  if (!rounded || !rounding(byte) || rounded->run != rounding(byte)) return -1;
  const VirtualOp* converted = op_of(rounded->in[0]);
  return converted && converted->run == conversion(Compute::F32, byte) ? converted->in[0] : -1;
}

namespace {

// Shorter rows are not worth a tile of their own.
constexpr int64_t kLeastRow = 192;

MicroFn loop_of(std::string_view name) { return find_loop({name, Compute::F32, Compute::F32}); }

class Rewriter {
 public:
  explicit Rewriter(VirtualGroup& group) : g_(group) {}

  void run() {
    drop_roundings_before_stores();
    store_floats_as_bytes();
    join_quantizing();
    quantize_to_bytes();
    join_dequantizing();
    find_singles();
  }

 private:
  VirtualValue& value(int id) { return g_.values[static_cast<size_t>(id)]; }
  const VirtualValue& value(int id) const { return g_.values[static_cast<size_t>(id)]; }
  DType output_type(int output) const {
    return g_.facts.outputs[static_cast<size_t>(output)].dtype;
  }

  void drop_unread() {
    for (size_t k = g_.ops.size(); k-- > 0;)
      if (g_.is_read_by(g_.ops[k].out, 0) && value(g_.ops[k].out).outputs.empty())
        g_.ops.erase(g_.ops.begin() + static_cast<std::ptrdiff_t>(k));
  }

  // A store rounds, too: what is read by nothing else is stored as it was before it was rounded.
  void drop_roundings_before_stores() {
    for (size_t k = g_.ops.size(); k-- > 0;) {
      if (!only_stored_rounded(g_.ops[k])) continue;
      std::vector<int>& outputs = value(g_.ops[k].out).outputs;
      value(g_.ops[k].in[0]).outputs = std::exchange(outputs, {});
      g_.ops.erase(g_.ops.begin() + static_cast<std::ptrdiff_t>(k));
    }
  }

  // Whether it rounds what another op made for outputs alone; store_floats_as_bytes treats bytes.
  bool only_stored_rounded(const VirtualOp& op) const {
    const std::vector<int>& outputs = value(op.out).outputs;
    if (op.in.size() != 1 || outputs.empty()) return false;
    const VirtualValue& exact = value(op.in[0]);
    if (exact.input >= 0 || exact.literal || !exact.outputs.empty()) return false;
    for (int output : outputs) {
      const DType dtype = output_type(output);
      if (size_of(dtype) == 1 || op.run != rounding(dtype)) return false;
    }
    return g_.is_read_by(op.out, 0);
  }

  // Floats that become bytes of outputs, and nothing else, are narrowed where they are stored.
  void store_floats_as_bytes() {
    for (size_t output = 0; output < g_.facts.outputs.size(); ++output) {
      const DType dtype = g_.facts.outputs[output].dtype;
      for (size_t v = 0; v < g_.values.size() && fits_float(dtype); ++v) {
        std::vector<int>& outputs = g_.values[v].outputs;
        if (outputs != std::vector<int>{static_cast<int>(output)}) continue;
        const int byte = static_cast<int>(v), real = g_.float_of_byte(byte, dtype);
        if (real < 0 || !g_.is_read_by(byte, 0)) continue;
        VirtualValue& from = value(real);
        if (from.input < 0 && !from.literal && from.outputs.empty())
          from.outputs = std::exchange(outputs, {});
      }
    }
    drop_unread();
  }

  // --- quantizing in one loop --------------------------------------------------------------------
  struct Quantizing {
    int x, scale, zero;
  };

  // What Clip quantizes to bytes by one scale and zero point; nothing if it does something else.
  std::optional<Quantizing> read_quantizing(const VirtualOp& clip) {
    if (clip.run != loop_of("Clip")) return std::nullopt;
    const double least = clip.params.number[0];
    if ((least != 0 && least != -128) || clip.params.number[1] != least + 255) return std::nullopt;
    const VirtualOp* add = made_by(clip.in[0], "Add");
    for (size_t i = 0; add && i < 2; ++i)
      if (const VirtualOp* div = read_steps(add->in[i]); div && is_number(add->in[1 - i]))
        return Quantizing{div->in[0], div->in[1], add->in[1 - i]};
    if (const VirtualOp* div = read_steps(clip.in[0])) {
      const int x = div->in[0], scale = div->in[1];
      return Quantizing{x, scale, g_.literal_value(0, Compute::F32)};
    }
    return std::nullopt;
  }

  // The division by a number of which `value` is the rounded quotient.
  const VirtualOp* read_steps(int value) const {
    const VirtualOp* round = made_by(value, "Round");
    const VirtualOp* div = round ? made_by(round->in[0], "Div") : nullptr;
    return div && is_number(div->in[1]) ? div : nullptr;
  }

  // The op that makes a value for one reader; null if it is another op.
  const VirtualOp* made_by(int id, std::string_view name) const {
    const VirtualOp* op = g_.op_of(id);
    const bool inner = value(id).outputs.empty() && g_.is_read_by(id, 1);
    return op && inner && op->run == loop_of(name) ? op : nullptr;
  }

  // Whether an input is one float for all, or for each row.
  bool is_number(int id) const {
    const VirtualValue& v = value(id);
    if (v.type != Compute::F32 || v.stored || v.input < 0 || !v.outputs.empty()) return false;
    return is_one(v) || (is_one_for_row(v) && g_.space.inner() >= kLeastRow);
  }

  bool is_one(const VirtualValue& v) const {
    return element_count(g_.facts.inputs[static_cast<size_t>(v.input)].layout.sizes) == 1;
  }

  bool is_one_for_row(const VirtualValue& v) const {
    const size_t operand = g_.facts.outputs.size() + static_cast<size_t>(v.input);
    return g_.space.rank > 0 && g_.space.strides[operand][g_.space.rank - 1] == 0;
  }

  // Makes an op of x, a scale and a zero point.
  void take(VirtualOp& op, MicroFn run, const Quantizing& by) {
    op.run = run;
    op.in = {by.x, by.scale, by.zero};
    op.singles_from = 1;
    for (int number : {by.scale, by.zero})
      if (value(number).input >= 0 && !is_one(value(number))) g_.by_rows = true;
  }

  void join_quantizing() {
    for (size_t k = 0; k < g_.ops.size(); ++k) {
      const std::optional<Quantizing> found = read_quantizing(g_.ops[k]);
      if (!found) continue;
      const int place = g_.ops[k].out;
      std::vector<size_t> readers;
      for (size_t r = k + 1; r < g_.ops.size(); ++r)
        if (std::find(g_.ops[r].in.begin(), g_.ops[r].in.end(), place) != g_.ops[r].in.end())
          readers.push_back(r);
      if (!becomes_bytes(g_.ops[k], readers)) continue;
      take(g_.ops[k], quantizing(), *found);
      for (size_t r : readers) read_instead(g_.ops[r].out, place);
      if (!readers.empty()) dequantize_at_once(g_.ops[k], *found);
    }
    drop_unread();
  }

  // Whether only byte outputs and conversions to bytes read what Clip makes.
  bool becomes_bytes(const VirtualOp& clip, const std::vector<size_t>& readers) const {
    const DType byte = clip.params.number[0] == 0 ? DType::UInt8 : DType::Int8;
    for (int output : value(clip.out).outputs)
      if (output_type(output) != byte) return false;
    return std::all_of(readers.begin(), readers.end(), [&](size_t r) {
      return g_.ops[r].run == through_byte(byte) && value(g_.ops[r].out).outputs.empty();
    });
  }

  void read_instead(int id, int other) {
    for (VirtualOp& op : g_.ops) std::replace(op.in.begin(), op.in.end(), id, other);
  }

  // Where the bytes are only dequantized again.
  void dequantize_at_once(const VirtualOp& quantized, const Quantizing& by) {
    for (VirtualOp& mul : g_.ops) {
      if (mul.run != loop_of("Mul")) continue;
      for (size_t i = 0; i < 2; ++i) {
        const VirtualOp* sub = mul.in[1 - i] == by.scale ? g_.op_of(mul.in[i]) : nullptr;
        if (!sub || sub->run != loop_of("Sub") || sub->in != std::vector{quantized.out, by.zero})
          continue;
        take(mul, fake_quantizing(), by);
        mul.params = quantized.params;
        break;
      }
    }
  }

  // What only becomes bytes of memory need not be floats before.
  void quantize_to_bytes() {
    for (VirtualOp& op : g_.ops) {
      VirtualValue& made = value(op.out);
      if (op.run != quantizing() || made.outputs.empty() || !g_.is_read_by(op.out, 0)) continue;
      made.stored = output_type(made.outputs[0]);
      op.run = quantizing_to(*made.stored);
    }
  }

  // --- dequantizing in one loop ------------------------------------------------------------------
  // (x - zero) * scale, where bytes of memory become floats for nothing else.
  void join_dequantizing() {
    for (VirtualOp& mul : g_.ops) {
      if (mul.run != loop_of("Mul")) continue;
      for (size_t i = 0; i < 2; ++i) {
        if (!is_number(mul.in[1 - i])) continue;
        const std::optional<Quantizing> found = read_moved(mul.in[i], mul.in[1 - i]);
        if (!found) continue;
        VirtualValue& bytes = value(found->x);
        bytes.stored = g_.facts.inputs[static_cast<size_t>(bytes.input)].dtype;
        take(mul, dequantizing(*bytes.stored), *found);
        break;
      }
    }
    drop_unread();
  }

  std::optional<Quantizing> read_moved(int id, int scale) {
    if (is_bytes(id)) return Quantizing{id, scale, g_.literal_value(0, Compute::F32)};
    const VirtualOp* sub = made_by(id, "Sub");
    if (!sub || !is_bytes(sub->in[0]) || !is_number(sub->in[1])) return std::nullopt;
    return Quantizing{sub->in[0], scale, sub->in[1]};
  }

  // Whether it is an input of bytes, loaded as floats for one reader.
  bool is_bytes(int id) const {
    const VirtualValue& v = value(id);
    return v.input >= 0 && v.type == Compute::F32 && !v.stored && v.outputs.empty() &&
           fits_float(g_.facts.inputs[static_cast<size_t>(v.input)].dtype) && !is_number(id) &&
           g_.is_read_by(id, 1);
  }

  void find_singles() {
    for (size_t id = 0; id < g_.values.size(); ++id) {
      VirtualValue& v = g_.values[id];
      v.single = v.input >= 0 && v.outputs.empty() &&
                 std::all_of(g_.ops.begin(), g_.ops.end(), [&](const VirtualOp& op) {
                   const auto whole = std::min(op.singles_from, op.in.size());
                   const auto end = op.in.begin() + static_cast<std::ptrdiff_t>(whole);
                   return std::find(op.in.begin(), end, static_cast<int>(id)) == end;
                 });
    }
  }

  VirtualGroup& g_;
};

}  // namespace

void simplify(VirtualGroup& group) { Rewriter(group).run(); }

}  // namespace ORTM_ISA
}  // namespace ortmodule
