#include "faults.h"

#include <signal.h>
#ifdef __APPLE__
#include <dlfcn.h>
#include <mach-o/getsect.h>
#else
#include <link.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#endif

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "scheduler.h"

static constexpr int TIME_SIGNAL = SIGURG;  // ignored by default: a late one does no harm
static constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, TIME_SIGNAL};
static constexpr size_t HANDLER_STACK = 64 << 10;
#ifndef SI_KERNEL
#define SI_KERNEL 0x80  // what Linux says, and macOS never
#endif

static std::mutex handler_mutex;
static int handler_users;
static struct sigaction previous[sizeof SIGNALS / sizeof *SIGNALS];

#ifdef __APPLE__
void find_code(Launch &launch) {
    Dl_info found;
    if (!dladdr((const void *)launch.kernel, &found)) return;
    unsigned long bytes;
    launch.code_begin = (const char *)found.dli_fbase;
    getsegmentdata((const mach_header_64 *)found.dli_fbase, "__TEXT", &bytes);
    launch.code_end = launch.code_begin + bytes;
}
#else
void find_code(Launch &launch) {
    auto visit = [](dl_phdr_info *info, size_t, void *data) {
        Launch &launch = *(Launch *)data;
        ElfW(Addr) end = 0;
        bool ours = false;
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const ElfW(Phdr) &segment = info->dlpi_phdr[i];
            if (segment.p_type != PT_LOAD) continue;
            ElfW(Addr) begin = info->dlpi_addr + segment.p_vaddr;
            ours |= (ElfW(Addr))launch.kernel - begin < segment.p_memsz;
            end = std::max(end, begin + segment.p_memsz);
        }
        if (ours) {
            launch.code_begin = (const char *)info->dlpi_addr;
            launch.code_end = (const char *)end;
        }
        return (int)ours;
    };
    dl_iterate_phdr(visit, &launch);
}
#endif

static const char *text_of(int signal, const siginfo_t *info, char *text, size_t size) {
    if (signal == SIGSEGV || signal == SIGBUS)
        info->si_code == SI_KERNEL  // the processor does not say which address
            ? std::snprintf(text, size, "misaligned access, or one to a wild address")
            : std::snprintf(text, size, "invalid access to address %p", info->si_addr);
    else if (signal == SIGFPE)
        std::snprintf(text, size, "integer division by zero");
    else
        std::snprintf(text, size, "illegal instruction");
    return text;
}

static void handle(int signal, siginfo_t *info, void *context) {
    const mcontext_t &machine = ((ucontext_t *)context)->uc_mcontext;
#if defined(__APPLE__)
    const char *pc = (const char *)machine->__ss.__pc;
    void **stack = (void **)machine->__ss.__sp;
#elif defined(__x86_64__)
    const char *pc = (const char *)machine.gregs[REG_RIP];
    void **stack = (void **)machine.gregs[REG_RSP];
#else
    const char *pc = (const char *)machine.pc;
    void **stack = (void **)machine.sp;
#endif
    Worker *worker = this_worker;
    bool on_fiber = worker && worker->stacks.contains(stack);
    auto in_kernel = [worker](const void *at) {
        return at >= worker->launch->code_begin && at < worker->launch->code_end;
    };
    if (signal == TIME_SIGNAL) {
        if (!worker) return;
        // Elsewhere than in the kernel's own code a lock may be held; there the flag is looked at.
        worker->launch->expired = true;
        if (!on_fiber || !in_kernel(pc)) return;
        worker->fail(TIME_LIMIT, pc + 1, "%s", "");
        worker->abandon();
    }
    if (!on_fiber) {  // not a kernel's fault: let it happen again under the previous handler
        for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++)
            if (SIGNALS[i] == signal) sigaction(signal, &previous[i], nullptr);
        return;
    }
    // In a function that the kernel called, such as memcpy: the way back leads into the kernel.
    for (int i = 0; i < 512 && !in_kernel(pc) && worker->stacks.contains(stack + i); i++)
        if (in_kernel(stack[i])) pc = (const char *)stack[i] - 1;
    char text[100];
    worker->fail(CRASH, pc + 1, "%s", text_of(signal, info, text, sizeof text));
    worker->abandon();
}

FaultGuard::FaultGuard(const Launch &launch) : stack_(std::malloc(HANDLER_STACK)) {
    stack_t stack{};
    stack.ss_sp = stack_;
    stack.ss_size = HANDLER_STACK;
    sigaltstack(&stack, nullptr);
    std::lock_guard<std::mutex> lock(handler_mutex);
    if (handler_users++ == 0) {
        struct sigaction action{};
        action.sa_sigaction = handle;
        // NODEFER: the handler never returns from a fault, it switches to the scheduler.
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
        for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++)
            sigaction(SIGNALS[i], &action, &previous[i]);
    }
#ifndef __APPLE__
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = TIME_SIGNAL;
    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_);  // others may have the processor
    double seconds = launch.options->time_limit;
    itimerspec when{};
    when.it_value.tv_sec = (time_t)seconds;
    when.it_value.tv_nsec = 1 + (long)((seconds - std::floor(seconds)) * 999'999'998);
    when.it_interval.tv_nsec = 20'000'000;  // again, should the first find it elsewhere
    timer_settime(timer_, 0, &when, nullptr);
#endif
}

FaultGuard::~FaultGuard() {
#ifndef __APPLE__
    timer_delete(timer_);
#endif
    std::lock_guard<std::mutex> lock(handler_mutex);
    if (--handler_users == 0)
        for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++)
            sigaction(SIGNALS[i], &previous[i], nullptr);
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
    std::free(stack_);
}
