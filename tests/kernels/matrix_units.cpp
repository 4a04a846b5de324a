// The few instructions of x86 matrix units (AMX) that kernels/native uses, done in software where the processor has none: it
// raises SIGILL at each, and the handler carries it out and steps over it. Written from the instructions' descriptions in
// Intel's manual (TILELOADD, TILESTORED, TILEZERO, TDPBF16PS, LDTILECFG, TILERELEASE), so that the machine code itself is run.
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ucontext.h>

struct Tile {
    uint8_t row[16][64];
};
static thread_local Tile tiles[8];
static thread_local int rows[8], bytes[8];
static thread_local bool configured;
static struct sigaction before;
static volatile long count;

static float number(const uint8_t* at) {
    uint32_t u = 0;
    std::memcpy((uint8_t*)&u + 2, at, 2);
    if (!(u & 0x7f800000u)) u &= 0x80000000u;  // tiny inputs count as zero
    float x;
    std::memcpy(&x, &u, 4);
    return x;
}
static float flushed(float x) { return x > -1.17549435e-38f && x < 1.17549435e-38f ? 0.0f : x; }

static void dot(int to, int a, int b) {
    for (int m = 0; m < rows[to]; m++)
        for (int n = 0; n < bytes[to] / 4; n++) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < bytes[a] / 4; k++) {
                even = flushed(__builtin_fmaf(number(tiles[a].row[m] + 4 * k), number(tiles[b].row[k] + 4 * n), even));
                odd = flushed(__builtin_fmaf(number(tiles[a].row[m] + 4 * k + 2), number(tiles[b].row[k] + 4 * n + 2), odd));
            }
            std::memcpy(&sum, tiles[to].row[m] + 4 * n, 4);
            sum = flushed(flushed(sum) + flushed(even + odd));
            std::memcpy(tiles[to].row[m] + 4 * n, &sum, 4);
        }
}

static greg_t& reg(ucontext_t* context, int i) {
    static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return context->uc_mcontext.gregs[order[i]];
}

static bool step(ucontext_t* context) {
    const uint8_t* const code = (const uint8_t*)context->uc_mcontext.gregs[REG_RIP];
    if (code[0] != 0xc4 || (code[1] & 0x1f) != 2) return false;  // a three-byte VEX prefix, second map
    const int high_index = code[1] & 0x40 ? 0 : 8, high_base = code[1] & 0x20 ? 0 : 8;
    const int third = ~(code[2] >> 3) & 7, kind = code[2] & 3, op = code[3], mod = code[4] >> 6, target = code[4] >> 3 & 7;
    const int low = code[4] & 7;
    int length = 5;
    int64_t address = 0, stride = 0;
    if (mod != 3) {
        int32_t wide = 0;
        if (low == 4) {
            const uint8_t sib = code[5];
            length++;
            const int index = (sib >> 3 & 7) + high_index;
            if (index != 4) stride = reg(context, index) << (sib >> 6);
            if ((sib & 7) == 5 && mod == 0)
                std::memcpy(&wide, code + length, 4), length += 4, address = wide;
            else
                address = reg(context, (sib & 7) + high_base);
        } else if (low == 5 && mod == 0) {
            std::memcpy(&wide, code + length, 4), length += 4;
            address = (int64_t)code + length + wide;
        } else {
            address = reg(context, low + high_base);
        }
        if (mod == 1) address += (int8_t)code[length], length++;
        if (mod == 2) std::memcpy(&wide, code + length, 4), length += 4, address += wide;
    }
    if (op == 0x49 && kind == 0 && mod != 3) {
        const uint8_t* shape = (const uint8_t*)address;
        if (shape[0] != 1) return false;
        for (int i = 0; i < 8; i++) bytes[i] = shape[16 + 2 * i] + 256 * shape[17 + 2 * i], rows[i] = shape[48 + i];
        std::memset(tiles, 0, sizeof tiles);
        configured = true;
    } else if (op == 0x49 && kind == 0 && code[4] == 0xc0) {
        configured = false;
    } else if (!configured) {
        return false;
    } else if (op == 0x49 && kind == 3 && mod == 3) {
        std::memset(&tiles[target], 0, sizeof(Tile));
    } else if (op == 0x4b && (kind == 2 || kind == 3) && mod != 3 && low == 4) {
        for (int r = 0; r < rows[target]; r++) {
            uint8_t* const memory = (uint8_t*)(address + r * stride);
            if (kind == 3)
                std::memcpy(tiles[target].row[r], memory, bytes[target]);
            else
                std::memcpy(memory, tiles[target].row[r], bytes[target]);
        }
    } else if (op == 0x5c && kind == 2 && mod == 3) {
        if (target == low || target == third || low == third) return false;  // three different tiles, or it is an error
        dot(target, low, third);
    } else {
        return false;
    }
    context->uc_mcontext.gregs[REG_RIP] += length;
    count = count + 1;
    return true;
}

static void handle(int, siginfo_t*, void* context) {
    if (!step((ucontext_t*)context)) sigaction(SIGILL, &before, nullptr);  // not ours: it is raised again, and ends as ever
}

extern "C" void matrix_units_begin() {
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    count = 0;
    sigaction(SIGILL, &action, &before);
}
// how many instructions were carried out since
extern "C" long matrix_units_end() {
    sigaction(SIGILL, &before, nullptr);
    return count;
}
