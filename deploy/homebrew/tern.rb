# Homebrew's formula for tern; scripts/release.py fills it in.
class Tern < Formula
  desc "Language models on CPUs and NVIDIA GPUs"
  homepage "@homepage@"
  version "@version@"
  license any_of: ["Apache-2.0", "MIT"]

  on_macos do
    on_arm do
      url "@releases@/tern-@version@-aarch64-apple-darwin.tar.gz"
      sha256 "@sha256 aarch64-apple-darwin@"
    end
    on_intel do
      url "@releases@/tern-@version@-x86_64-apple-darwin.tar.gz"
      sha256 "@sha256 x86_64-apple-darwin@"
    end
  end
  on_linux do
    on_arm do
      url "@releases@/tern-@version@-aarch64-unknown-linux-gnu.tar.gz"
      sha256 "@sha256 aarch64-unknown-linux-gnu@"
    end
    on_intel do
      url "@releases@/tern-@version@-x86_64-unknown-linux-gnu.tar.gz"
      sha256 "@sha256 x86_64-unknown-linux-gnu@"
    end
  end

  def install
    bin.install "bin/tern"
    man1.install Dir["share/man/man1/*.1"]
    bash_completion.install "share/bash-completion/completions/tern"
    zsh_completion.install "share/zsh/site-functions/_tern"
    fish_completion.install "share/fish/vendor_completions.d/tern.fish"
  end

  service do
    run [opt_bin/"tern", "serve"]
    keep_alive crashed: true
    log_path var/"log/tern.log"
    error_log_path var/"log/tern.log"
  end

  test do
    assert_match "girl", shell_output("#{bin}/tern run -q -n 20 --temp 0 'Once upon a time'")
  end
end
