// ONNX models planned to the byte and run, without torch or Python. C++17; link ortmodule::core.
//
//   ortmodule::inference::Session session("model.onnx");
//   auto image = ortmodule::inference::Value::tensor<float>({1, 3, 224, 224}, pixels);
//   auto memory = session.memory({{"image", image}});       // bytes, known before the run
//   auto outputs = session.run({"image"}, {image});         // every output of the model
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__GNUC__)
#define ORTMODULE_API __attribute__((visibility("default")))
#else
#define ORTMODULE_API
#endif

namespace ortmodule::inference {
inline namespace v1 {

/// Element types of tensors, by their numbers in ONNX (TensorProto.DataType). Tensors can hold all
/// of whole bytes; the engine computes with those that supported() names.
enum class ElementType : int32_t {
  Undefined = 0,
  Float32 = 1,
  UInt8 = 2,
  Int8 = 3,
  UInt16 = 4,
  Int16 = 5,
  Int32 = 6,
  Int64 = 7,
  String = 8,
  Bool = 9,
  Float16 = 10,
  Float64 = 11,
  UInt32 = 12,
  UInt64 = 13,
  Complex64 = 14,
  Complex128 = 15,
  BFloat16 = 16,
  Float8E4M3FN = 17,
  Float8E4M3FNUZ = 18,
  Float8E5M2 = 19,
  Float8E5M2FNUZ = 20,
  UInt4 = 21,
  Int4 = 22,
  Float4E2M1 = 23,
  Float8E8M0 = 24,
  UInt2 = 25,
  Int2 = 26,
};

/// Bytes of one element; 0 for strings. Elements of 2 and 4 bits take a byte each.
ORTMODULE_API size_t byte_size(ElementType type);
/// ONNX's name: "float", "int64", "bfloat16".
ORTMODULE_API std::string name_of(ElementType type);
/// Whether models with such inputs can run.
ORTMODULE_API bool supported(ElementType type);

/// An IEEE half-precision number, by its bits.
struct ORTMODULE_API Float16 {
  uint16_t bits = 0;

  Float16() = default;
  /// Rounds to the nearest, ties to even.
  explicit Float16(float value);
  explicit operator float() const;
  static Float16 from_bits(uint16_t bits);
};

/// The upper half of a float, by its bits.
struct ORTMODULE_API BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  /// Rounds to the nearest, ties to even.
  explicit BFloat16(float value);
  explicit operator float() const;
  static BFloat16 from_bits(uint16_t bits);
};

/// The element type of a C++ type: element_type_of<float> is ElementType::Float32.
template <class T>
inline constexpr ElementType element_type_of = ElementType::Undefined;
template <>
inline constexpr ElementType element_type_of<float> = ElementType::Float32;
template <>
inline constexpr ElementType element_type_of<double> = ElementType::Float64;
template <>
inline constexpr ElementType element_type_of<uint8_t> = ElementType::UInt8;
template <>
inline constexpr ElementType element_type_of<int8_t> = ElementType::Int8;
template <>
inline constexpr ElementType element_type_of<uint16_t> = ElementType::UInt16;
template <>
inline constexpr ElementType element_type_of<int16_t> = ElementType::Int16;
template <>
inline constexpr ElementType element_type_of<uint32_t> = ElementType::UInt32;
template <>
inline constexpr ElementType element_type_of<int32_t> = ElementType::Int32;
template <>
inline constexpr ElementType element_type_of<uint64_t> = ElementType::UInt64;
template <>
inline constexpr ElementType element_type_of<int64_t> = ElementType::Int64;
template <>
inline constexpr ElementType element_type_of<bool> = ElementType::Bool;
template <>
inline constexpr ElementType element_type_of<Float16> = ElementType::Float16;
template <>
inline constexpr ElementType element_type_of<BFloat16> = ElementType::BFloat16;

/// What went wrong.
enum class ErrorCode : int32_t {
  Fail = 1,
  InvalidArgument,  // a value, name or option that the model or the session does not take
  NoSuchFile,       // the model's file does not exist
  InvalidModel,     // the file is no ONNX model, it is damaged, or its nodes are not valid
  NotImplemented,   // the model has nodes that the engine cannot run; the message lists all
  OutOfMemory,      // the run does not fit into memory
  Internal,         // a mistake of this library; please report it
};

/// Every error that this library throws. The message names the place, the rule, and what was found.
class ORTMODULE_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);
  ~Error() override;
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// A tensor, a sequence of values, or nothing (an empty optional). Copies share the memory; it is
/// freed with the last of them.
class ORTMODULE_API Value {
 public:
  enum class Kind : int32_t { Absent, Tensor, Sequence };

  /// An empty optional.
  Value();
  /// A tensor of zeros that owns its memory, row-major, at an address aligned to 64 bytes. An empty
  /// list of sizes makes a scalar.
  static Value tensor(ElementType type, std::vector<int64_t> sizes);
  /// A tensor that owns a copy of `elements`, of which there must be as many as the sizes say.
  template <class T>
  static Value tensor(std::vector<int64_t> sizes, const std::vector<T>& elements) {
    static_assert(!std::is_same_v<T, bool>,
                  "std::vector<bool> has no array: use uint8_t with "
                  "Value::tensor(ElementType::Bool, sizes)");
    return copied(known_type<T>(), std::move(sizes), elements.data(), elements.size() * sizeof(T));
  }
  /// The same from an array of `bytes` bytes.
  static Value copied(ElementType type, std::vector<int64_t> sizes, const void* data, size_t bytes);
  /// A tensor in memory of the caller, of at least as many bytes as the sizes take. It must live
  /// as long as the value and its copies, unless `owner` keeps it alive.
  static Value borrowed(ElementType type, std::vector<int64_t> sizes, void* data, size_t bytes,
                        std::shared_ptr<const void> owner = {});
  /// The same for reading only: no run can write into it.
  static Value borrowed(ElementType type, std::vector<int64_t> sizes, const void* data,
                        size_t bytes, std::shared_ptr<const void> owner = {});
  /// The same for `count` elements of a C++ type.
  template <class T>
  static Value borrowed(std::vector<int64_t> sizes, T* data, size_t count) {
    return borrowed(known_type<std::remove_const_t<T>>(), std::move(sizes), data,
                    count * sizeof(T));
  }
  /// The bytes that a tensor takes. Throws Error for negative sizes and more than 2^63 bytes.
  static size_t byte_count_of(ElementType type, const std::vector<int64_t>& sizes);
  /// A sequence of tensors.
  static Value sequence(std::vector<Value> elements);

  Kind kind() const noexcept;
  bool is_tensor() const noexcept { return kind() == Kind::Tensor; }
  bool is_sequence() const noexcept { return kind() == Kind::Sequence; }

  /// Of a tensor; throws Error for another kind.
  ElementType type() const;
  const std::vector<int64_t>& sizes() const;
  int64_t element_count() const;
  size_t byte_count() const;
  /// The first element; null if there is none.
  const void* data() const;
  /// The same for writing; throws Error if the memory was borrowed for reading only.
  void* mutable_data() const;
  bool read_only() const;
  /// The first element as T; throws Error if the tensor has another element type.
  template <class T>
  const T* data() const {
    check_type(known_type<T>());
    return static_cast<const T*>(data());
  }
  template <class T>
  T* mutable_data() const {
    check_type(known_type<T>());
    return static_cast<T*>(mutable_data());
  }
  /// A copy of the elements; throws Error if the tensor has another element type.
  template <class T>
  std::vector<T> to_vector() const {
    const T* first = data<T>();
    return first ? std::vector<T>(first, first + element_count()) : std::vector<T>();
  }

  /// The elements of a sequence; throws Error for another kind.
  const std::vector<Value>& elements() const;

 private:
  struct Impl;
  template <class T>
  static constexpr ElementType known_type() {
    static_assert(element_type_of<T> != ElementType::Undefined, "ONNX has no such element type");
    return element_type_of<T>;
  }
  static Value placed(ElementType type, std::vector<int64_t> sizes, void* data, size_t bytes,
                      bool read_only, std::shared_ptr<const void> owner);
  const Impl& as_tensor() const;
  void check_type(ElementType wanted) const;

  std::shared_ptr<const Impl> impl_;
};

/// An input or output of a model.
struct TensorInfo {
  enum class Kind : int32_t { Tensor, Sequence, Other };

  std::string name;
  Kind kind = Kind::Tensor;
  bool optional = false;  // it may be absent
  ElementType type = ElementType::Undefined;
  bool has_rank = false;                // false: the model does not say how many sizes there are
  std::vector<int64_t> sizes;           // -1 for a size that changes
  std::vector<std::string> size_names;  // "" for a size without a name
};

/// What a run takes, in bytes, known before it runs. Inputs belong to the caller and are not in it.
struct MemoryReport {
  int64_t weights_bytes = 0;  // of the model, shared by all runs
  int64_t outputs_bytes = 0;  // that the run returns
  int64_t peak_bytes = 0;     // that the run allocates, outputs included
  int64_t total_bytes = 0;    // weights and peak
  bool exact = true;          // false: a library may allocate more
  int64_t parts = 1;          // into which a memory limit cuts the batch
};

/// What a session holds now, in bytes, beside the weights.
struct HeldMemory {
  int64_t runs_bytes = 0;   // of runs, and outputs that the caller still has
  int64_t kept_bytes = 0;   // freed blocks that wait for the next run
  int64_t plans_bytes = 0;  // plans and imported graphs, about
  int64_t peak_bytes = 0;   // the most that runs and outputs took so far
};

/// What a model's file says about itself.
struct ModelMetadata {
  std::string producer_name;
  std::string graph_name;
  std::string domain;
  std::string description;
  std::string graph_description;
  int64_t version = 0;  // of the model
  std::map<std::string, std::string> custom;
};

/// How far graphs are optimized. All levels give equal results up to rounding.
enum class OptimizationLevel : int32_t { None = 0, Basic = 1, Extended = 2, Layout = 3, All = 99 };

/// Options of a session. A plain value: copies are independent.
class ORTMODULE_API SessionOptions {
 public:
  SessionOptions();
  SessionOptions(const SessionOptions& other);
  SessionOptions& operator=(const SessionOptions& other);
  ~SessionOptions();

  /// Threads of the session, the calling one included; 0: one for each core.
  SessionOptions& set_threads(int64_t threads);
  /// Fixes the size that the model names `name`.
  SessionOptions& set_fixed_size(const std::string& name, int64_t value);
  /// Seed of random operators; 0: another one for each session.
  SessionOptions& set_seed(uint64_t seed);
  SessionOptions& set_optimization_level(OptimizationLevel level);
  /// Traces the steps of all runs from the start; see Session::end_profiling.
  SessionOptions& set_profiling(bool on);

  /// Most bytes of the weights and of all runs together; 0: no limit. A run that never fits throws
  /// Error (OutOfMemory) before it computes anything; one that has to wait for others waits.
  SessionOptions& set_memory_limit(int64_t bytes);
  /// True, the default: memory of a run stays while runs follow each other, and goes back to the
  /// system about 200 ms after the last; false: it goes back after each run.
  SessionOptions& set_keep_block(bool keep);
  /// True, the default: temporaries of a run share one block by offsets; false: each has memory of
  /// its own while it lives.
  SessionOptions& set_one_block(bool one);
  /// False: no temporary takes memory of another.
  SessionOptions& set_memory_reuse(bool reuse);
  /// Keeps float32 weights in float16, where it can hold them: half the memory, and rounded.
  SessionOptions& set_half_weights(bool half);
  /// A tensor in place of the model's initializer of that name, of the same type and sizes. Its
  /// memory is shared.
  SessionOptions& add_initializer(const std::string& name, Value tensor);
  /// Where the optimized model is written as an ONNX file: while the session opens, or with the
  /// first run if that decides sizes.
  SessionOptions& set_optimized_model_path(const std::string& path);

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Options of runs. Copies share the request to end.
class ORTMODULE_API RunOptions {
 public:
  RunOptions();
  /// Ends the runs that have these options, before their next step, with Error; from any thread.
  void terminate();
  /// Takes the request back, for the next runs.
  void clear_terminate();

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

class IoBinding;

/// A model that is loaded, planned for the sizes of its inputs, and run. Thread-safe: runs may
/// overlap. Copies are handles of the same session.
class ORTMODULE_API Session {
 public:
  struct Impl;

  /// Loads a file. Its weights stay mapped in the file, which must not change meanwhile. Throws
  /// Error: NoSuchFile, InvalidModel, NotImplemented.
  explicit Session(const std::string& path, const SessionOptions& options = {});
  /// Loads a model from a copy of `bytes` bytes.
  static Session from_bytes(const void* model, size_t bytes, const SessionOptions& options = {});
  /// The same without the copy: the bytes must live as long as the session, unless `owner` keeps
  /// them alive.
  static Session from_borrowed_bytes(const void* model, size_t bytes,
                                     const SessionOptions& options = {},
                                     std::shared_ptr<const void> owner = {});

  /// The inputs that a run needs: those without an initializer, in the model's order.
  const std::vector<TensorInfo>& inputs() const;
  /// The outputs, with types and sizes that the file leaves out as far as all calls have them: the
  /// first call may import the model for likely sizes.
  const std::vector<TensorInfo>& outputs() const;
  /// Inputs that have an initializer; a run may give them another value.
  const std::vector<TensorInfo>& overridable_inputs() const;
  const ModelMetadata& metadata() const;

  /// Runs the model on `values`, given by input name in any order, and returns the outputs named,
  /// in that order; all of them if none is named. The first run of new sizes makes a plan. Throws
  /// Error.
  std::vector<Value> run(const std::vector<std::string>& input_names,
                         const std::vector<Value>& values,
                         const std::vector<std::string>& output_names = {},
                         const RunOptions& options = {}) const;
  /// The same on bound inputs, into bound outputs.
  void run(IoBinding& binding, const RunOptions& options = {}) const;

  /// What a run of these sizes takes, by input name.
  MemoryReport memory(const std::map<std::string, std::vector<int64_t>>& sizes) const;
  /// The same for values, where sizes inside the model depend on the content of an input.
  MemoryReport memory(const std::map<std::string, Value>& values) const;
  /// The largest value of the size that the model names `name` ("batch" also stands for the first
  /// dimension) for which the weights and a run take at most `limit_bytes`; 0 if there is none. The
  /// other sizes are those of `sizes`. Makes plans, runs nothing.
  int64_t largest(const std::string& name, int64_t limit_bytes,
                  const std::map<std::string, std::vector<int64_t>>& sizes) const;
  /// What the session holds now.
  HeldMemory held() const;
  /// Returns memory that is kept for the next run to the system.
  void return_kept() const;
  /// Bytes that the run that finished last had allocated at its peak.
  int64_t last_peak_bytes() const;
  /// The plan of such a run as text: buffers, steps, kernels and their bytes.
  std::string plan_text(const std::map<std::string, Value>& values) const;
  /// Writes the trace of all runs since the start, or since the last call, as JSON for a trace
  /// viewer. False if the options did not ask for a trace.
  bool end_profiling(const std::string& path) const;

 private:
  friend class IoBinding;
  explicit Session(std::shared_ptr<Impl> impl);

  std::shared_ptr<Impl> impl_;
};

/// Inputs and outputs of a session that stay bound from run to run. One thread at a time may use a
/// binding; it keeps the session and the values alive.
class ORTMODULE_API IoBinding {
 public:
  explicit IoBinding(const Session& session);
  IoBinding(IoBinding&& other) noexcept;
  IoBinding& operator=(IoBinding&& other) noexcept;
  ~IoBinding();

  /// Binds an input, in place of what was bound before. Throws Error if the model has none of that
  /// name.
  void bind_input(const std::string& name, Value value);
  /// Binds an output to a tensor that runs write into. A run throws Error, before it computes
  /// anything, if the output has other sizes or another type.
  void bind_output(const std::string& name, Value tensor);
  /// Binds an output that each run allocates.
  void bind_output(const std::string& name);
  void clear_inputs();
  void clear_outputs();

  /// Names of the bound outputs, in the order in which they were bound.
  const std::vector<std::string>& output_names() const;
  /// The values of the last run by bound output.
  const std::vector<Value>& outputs() const;

 private:
  friend class Session;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Version of the library, such as "0.2.0".
ORTMODULE_API std::string version();

}  // namespace v1
}  // namespace ortmodule::inference
