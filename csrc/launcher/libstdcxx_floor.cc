// The default constructor of std::ostringstream, which tvm-ffi's headers use, became a symbol of libstdc++ with GCC 9.
// Instantiating the class here keeps the launcher loadable beside the libstdc++ of GCC 8, the floor of manylinux_2_28.
#include <sstream>

#ifdef __GLIBCXX__
template class std::basic_ostringstream<char>;
#endif
