// Resident pages that nothing needs while nothing runs.
#pragma once

namespace ortmodule {

/// Takes the code and constants of this library out of the resident set: importing and planning a
/// model reads megabytes of them, runs little. They stay in the system's cache of files and come
/// back page by page as they are read. Does nothing where pages were written to, such as by a
/// debugger.
void forget_code_pages();

/// Returns the pages of the calling thread's stack below its frame: kernels put blocks of hundreds
/// of KiB there. Only for threads of our own.
void return_unused_stack();

}  // namespace ortmodule
