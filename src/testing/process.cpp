#include "testing/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>

namespace tare::testing {

namespace {

struct Pipe {
  int read = -1;
  int write = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) == 0) {
      read = ends[0];
      write = ends[1];
    }
  }
  ~Pipe() {
    close_end(read);
    close_end(write);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  static void close_end(int& fd) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
};

[[noreturn]] void exec_child(const std::vector<std::string>& command, const ProcessOptions& options, const Pipe& in,
                             const Pipe& out, const Pipe& err) {
  ::dup2(in.read, STDIN_FILENO);
  ::dup2(out.write, STDOUT_FILENO);
  ::dup2(err.write, STDERR_FILENO);
  for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& part : command) argv.push_back(const_cast<char*>(part.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

Finished run_process(const std::vector<std::string>& command, const ProcessOptions& options) {
  Finished finished;
  Pipe in, out, err;
  const pid_t child = ::fork();
  if (child == 0) exec_child(command, options, in, out, err);
  if (child < 0) {
    ADD_FAILURE() << "cannot start " << command.front();
    return finished;
  }
  Pipe::close_end(in.read);
  Pipe::close_end(out.write);
  Pipe::close_end(err.write);
  ::signal(SIGPIPE, SIG_IGN);  // a child that does not read its input is no failure of the test
  ::fcntl(in.write, F_SETFL, O_NONBLOCK);

  const auto started = std::chrono::steady_clock::now();
  const auto elapsed_ms = [&] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - started).count();
  };
  bool interrupt_sent = false, killed = false;
  size_t sent = 0;
  while (out.read >= 0 || err.read >= 0) {
    const bool all_sent = sent == options.input.size();
    if (in.write >= 0 && all_sent && !options.keep_input_open) Pipe::close_end(in.write);
    std::array<pollfd, 3> waits = {
        {{out.read, POLLIN, 0}, {err.read, POLLIN, 0}, {in.write, static_cast<short>(POLLOUT), 0}}};
    ::poll(waits.data(), waits.size(), 20);
    const auto drain = [](pollfd& wait, int& fd, std::string& text) {
      if (fd < 0 || !(wait.revents & (POLLIN | POLLHUP | POLLERR))) return;
      char chunk[1 << 16];
      const ssize_t got = ::read(fd, chunk, sizeof chunk);
      if (got > 0)
        text.append(chunk, static_cast<size_t>(got));
      else if (got == 0)
        Pipe::close_end(fd);
    };
    drain(waits[0], out.read, finished.out);
    drain(waits[1], err.read, finished.err);
    if (!all_sent && (waits[2].revents & (POLLOUT | POLLERR))) {
      const ssize_t put = ::write(in.write, options.input.data() + sent, options.input.size() - sent);
      if (put > 0)
        sent += static_cast<size_t>(put);
      else if (put < 0 && errno != EAGAIN)
        sent = options.input.size();
    }
    if (options.interrupt_after_ms > 0 && !interrupt_sent && elapsed_ms() >= options.interrupt_after_ms) {
      ::kill(child, SIGINT);
      interrupt_sent = true;
    }
    if (!killed && elapsed_ms() > options.timeout_ms) {
      ADD_FAILURE() << command.front() << " ran longer than " << options.timeout_ms << " ms";
      ::kill(child, SIGKILL);
      killed = true;
    }
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) finished.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) finished.signal = WTERMSIG(status);
  return finished;
}

}  // namespace tare::testing
