// The C++ of the memory guide: its three lines as printed, and a session with them.
#include <onnxruntime_cxx_api.h>

using namespace Ort;

int main(int argc, char* argv[]) {
  if (argc != 2) return 2;
// C++ API
SessionOptions session_options;
session_options.EnableCpuMemArena();
session_options.EnableMemPattern();

  Env env;
  Session session(env, argv[1], session_options);
  std::cout << "inputs: " << session.GetInputCount() << std::endl;
  return 0;
}
