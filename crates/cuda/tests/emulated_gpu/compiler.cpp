// An NVRTC that compiles kernels for the emulated GPU: a shared library whose path is the machine code.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <string>
#include <unistd.h>

namespace {
struct Program { std::string source, log, code; };

std::string read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// The kernels' text with the emulated GPU instead of PTX, and a function without parameters of its own for each kernel.
std::string emulated(const std::string& source, const std::string& gpu) {
    size_t begin = source.find("#line 1 \"base/ptx.cuh\"\n"), end = source.find("\n#line ", begin);
    if (begin == std::string::npos || end == std::string::npos) return "#error base/ptx.cuh is not included\n";
    std::string text = source.substr(end + 1);
    text = std::regex_replace(text, std::regex("extern __shared__ __align__\\(\\d+\\) u8 (\\w+)\\[\\];"), "\n#define $1 emulated_shared_memory\n");
    text = std::regex_replace(text, std::regex("__INTADDR__\\(&\\(\\((\\w+)\\*\\)0\\)->(\\w+)\\)"), "__builtin_offsetof($1, $2)");
    std::string exports = "}\n";
    std::regex kernel("__global__ void __launch_bounds__\\([^{]*?\\)\\s+(\\w+)\\(const (?:__grid_constant__ )?(\\w+) \\w+\\)");
    for (std::sregex_iterator it(text.begin(), text.end(), kernel), none; it != none; ++it)
        exports += "extern \"C\" __attribute__((visibility(\"default\"))) void emulated_" + (*it)[1].str() + "(const void* args) { " + (*it)[1].str() + "(*(const " + (*it)[2].str() + "*)args); }\n";
    return source.substr(0, begin) + "#include \"" + gpu + "\"\n" + text + exports;
}
}

extern "C" {
int nvrtcVersion(int* major, int* minor) { return *major = 0, *minor = 1, 0; }
const char* nvrtcGetErrorString(int) { return "the emulated kernel does not compile"; }
int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*, const char* const*) {
    return *program = new Program{source, "", ""}, 0;
}
int nvrtcDestroyProgram(void** program) { return delete (Program*)*program, 0; }
int nvrtcCompileProgram(void* handle, int count, const char* const* options) {
    Program& p = *(Program*)handle;
    std::string folder = getenv("EMULATED_GPU"), arch = "900", macros;
    const std::string define = "--define-macro=";
    for (int i = 0; i < count; i++) {
        std::string option = options[i];
        if (option.find("sm_80") != std::string::npos) arch = "800";
        if (option.rfind(define, 0) != 0) continue;
        size_t is = option.find('=', define.size());
        macros += "#define " + option.substr(define.size(), is - define.size()) + " " + option.substr(is + 1) + "\n";
    }
    std::string text = "#define __CUDA_ARCH__ " + arch + "\n" + macros + emulated(p.source, getenv("EMULATED_GPU_HEADER"));
    const char *cxx = getenv("CXX"), *flags = getenv("EMULATED_GPU_FLAGS");
    size_t hash = std::hash<std::string>()(text + read(getenv("EMULATED_GPU_HEADER")) + (flags ? flags : ""));
    std::string name = folder + "/" + std::to_string(hash), own = name + "." + std::to_string(getpid()) + "." + std::to_string((size_t)handle);
    p.code = name + ".so";
    if (access(p.code.c_str(), R_OK) == 0) return 0;
    std::ofstream(own + ".cpp") << text;
    std::string command = std::string(cxx ? cxx : "c++") + " -std=c++20 -O1 -w -fPIC -shared -fno-strict-aliasing -ffp-contract=off " + (flags ? flags : "") + " -o " + own + ".so " + own + ".cpp > " + own + ".log 2>&1";
    int failed = system(command.c_str());
    p.log = read(own + ".log");
    if (!failed) rename((own + ".so").c_str(), p.code.c_str()), unlink((own + ".cpp").c_str()), unlink((own + ".log").c_str());
    return failed ? 6 : 0;
}
int nvrtcGetProgramLogSize(void* p, size_t* size) { return *size = ((Program*)p)->log.size() + 1, 0; }
int nvrtcGetProgramLog(void* p, char* log) { return strcpy(log, ((Program*)p)->log.c_str()), 0; }
int nvrtcGetCUBINSize(void* p, size_t* size) { return *size = ((Program*)p)->code.size() + 1, 0; }
int nvrtcGetCUBIN(void* p, char* code) { return strcpy(code, ((Program*)p)->code.c_str()), 0; }
}
