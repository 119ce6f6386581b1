// What a program can decide about memory, initializers and the optimized file, and asynchronous runs.
#include <onnxruntime_cxx_api.h>

#include <fstream>
#include <future>
#include <iostream>
#include <string>
#include <vector>

namespace native = ortmodule::inference;

static void check(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "not so: " << what << std::endl;
  std::exit(1);
}

static void on_end(void* user_data, OrtValue** outputs, size_t count, OrtStatusPtr status_ptr) {
  Ort::Status status(status_ptr);
  check(status.IsOK() == (count == 1), "outputs come with success");
  const char* text = count == 1 && outputs[0] ? "done" : "failed";
  static_cast<std::promise<std::string>*>(user_data)->set_value(text);
}

static std::string run_async(Ort::Session& session, Ort::Value& x, const Ort::RunOptions& options,
                             Ort::Value& y) {
  const char* inputs[] = {"x"};
  const char* outputs[] = {"y"};
  std::promise<std::string> ended;
  session.RunAsync(options, inputs, &x, 1, outputs, &y, 1, on_end, &ended);
  return ended.get_future().get();
}

static void limits(const std::string& path) {
  native::Session free(path);
  const int64_t needed = free.memory({{"x", {64, 4}}}).total_bytes;
  check(free.largest("n", needed, {{"x", {1, 4}}}) == 64, "64 rows are the largest that fit");
  native::SessionOptions options;
  options.set_memory_limit(needed).set_threads(1).set_keep_block(false);
  native::Session limited(path, options);
  const std::vector<float> numbers(65 * 4, 1.0f);
  const auto rows = [&](int64_t n) {
    return native::Value::borrowed<const float>({n, 4}, numbers.data(),
                                                static_cast<size_t>(4 * n));
  };
  check(limited.run({"x"}, {rows(64)}).size() == 2, "a run within the limit runs");
  check(limited.held().kept_bytes == 0, "no memory is kept");
  check(limited.memory({{"x", {65, 4}}}).parts == 2, "one row more runs in two parts");
  check(limited.run({"x"}, {rows(65)})[1].sizes()[0] == 65, "to the whole output");
  try {
    native::Session(path, native::SessionOptions().set_memory_limit(100)).run({"x"}, {rows(2)});
    check(false, "a run beyond the limit is refused");
  } catch (const native::Error& error) {
    check(error.code() == native::ErrorCode::OutOfMemory, "by its code");
  }
  free.run({"x"}, {rows(64)});
  free.return_kept();
  check(free.held().kept_bytes == 0, "kept memory can be returned");
}

int main(int argc, char* argv[]) {
  if (argc != 2) return 2;
  limits(argv[1]);

  Ort::Env env;
  Ort::AllocatorWithDefaultOptions allocator;
  const std::vector<int64_t> shape{4, 10};
  Ort::Value weights = Ort::Value::CreateTensor<float>(allocator, shape.data(), shape.size());
  for (size_t i = 0; i < 40; ++i) weights.GetTensorMutableData<float>()[i] = 0.5f;
  Ort::SessionOptions options;
  options.AddInitializer("w", weights);
  options.DisableCpuMemArena().DisableMemPattern();
  const std::string optimized = "optimized.onnx";
  options.SetOptimizedModelFilePath(optimized.c_str());
  Ort::Session session(env, argv[1], options);
  check(std::ifstream(optimized).good(), "the optimized model is written");

  const std::vector<int64_t> one{1, 4};
  Ort::Value x = Ort::Value::CreateTensor<float>(allocator, one.data(), one.size());
  for (size_t i = 0; i < 4; ++i) x.GetTensorMutableData<float>()[i] = 1.0f;
  Ort::Value y{nullptr};
  Ort::RunOptions run;
  check(run_async(session, x, run, y) == "done", "an asynchronous run ends");
  check(y.GetTensorData<float>()[9] == 2.0f, "with the initializer that was given");
  Ort::Session again(env, optimized.c_str(), Ort::SessionOptions());
  Ort::Value z{nullptr};
  check(run_async(again, x, run, z) == "done", "the optimized model runs");
  check(z.GetTensorData<float>()[9] == 2.0f, "and has the initializer");
  run.SetTerminate();
  Ort::Value none{nullptr};
  check(run_async(session, x, run, none) == "failed", "a terminated run fails by its status");
  try {
    Ort::SessionOptions().AddConfigEntry("session.memory_limit", "much");
    check(false, "a limit that is no number is refused");
  } catch (const Ort::Exception&) {
  }
  std::cout << "asynchronous: 2 runs" << std::endl;
  return 0;
}
