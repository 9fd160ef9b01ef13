#!/bin/sh
# Installs tern: the command, its man pages and its completions.
#
#     sh install.sh [--prefix FOLDER] [--version VERSION] [--uninstall]
#
# The default prefix is ~/.local, and the default version the one that this script was released with. The archive is
# checked against the release's SHA256SUMS before anything is installed. TERN_RELEASES is the folder or the address
# that has the archives, if it is not that of the release.
#
# All is in functions, so that a script that was cut off does nothing.
set -eu

releases=${TERN_RELEASES:-@releases@}
version=@version@

fail() {
    echo "error: $1" >&2
    exit 1
}

# The triple of this machine.
machine() {
    system=$(uname -s) processor=$(uname -m)
    case $processor in
    x86_64 | amd64) processor=x86_64 ;;
    aarch64 | arm64) processor=aarch64 ;;
    *) fail "no binary for the processor $processor: build it with cargo (README.md)" ;;
    esac
    case $system in
    Linux)
        if ldd --version 2>&1 | grep -qi musl; then
            fail "no binary for musl: build it with cargo (README.md)"
        fi
        echo "$processor-unknown-linux-gnu"
        ;;
    Darwin) echo "$processor-apple-darwin" ;;
    *) fail "no binary for $system: see the archives of the release" ;;
    esac
}

# fetch NAME FILE
fetch() {
    case $releases in
    http://* | https://*)
        if command -v curl >/dev/null; then
            curl --fail --silent --show-error --location --retry 3 --output "$2" "$releases/$1"
        elif command -v wget >/dev/null; then
            wget --quiet --tries=3 --output-document="$2" "$releases/$1"
        else
            fail "curl or wget is needed to download tern"
        fi || fail "$releases/$1 cannot be downloaded"
        ;;
    *) cp "$releases/$1" "$2" || fail "$releases/$1 cannot be read" ;;
    esac
}

sum() {
    if command -v sha256sum >/dev/null; then
        sha256sum "$1" | cut -d ' ' -f 1
    else
        shasum -a 256 "$1" | cut -d ' ' -f 1
    fi
}

installed() {
    echo bin/tern
    echo share/bash-completion/completions/tern
    echo share/zsh/site-functions/_tern
    echo share/fish/vendor_completions.d/tern.fish
    echo share/doc/tern
    (cd "$1" && find share/man/man1 -name 'tern.1' -o -name 'tern-*.1' 2>/dev/null) || true
}

uninstall() {
    [ -e "$prefix/bin/tern" ] || fail "$prefix/bin/tern does not exist"
    installed "$prefix" | while read -r path; do
        rm -rf "${prefix:?}/$path"
    done
    echo "tern was removed from $prefix; downloaded models are in ~/.cache/tern"
}

put() {
    name=tern-$version-$(machine)
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    trap 'exit 1' HUP INT TERM
    fetch SHA256SUMS "$folder/SHA256SUMS"
    fetch "$name.tar.gz" "$folder/$name.tar.gz"
    want=$(awk -v name="$name.tar.gz" '$2 == name || $2 == "*" name { print $1 }' "$folder/SHA256SUMS")
    [ -n "$want" ] || fail "SHA256SUMS has no $name.tar.gz"
    have=$(sum "$folder/$name.tar.gz")
    [ "$have" = "$want" ] || fail "$name.tar.gz: SHA-256 is $have, expected $want; nothing was installed"
    tar -xzf "$folder/$name.tar.gz" -C "$folder"
    "$folder/$name/bin/tern" --version >/dev/null || fail "the binary does not run on this machine; nothing was installed"
    # a running tern keeps its file: the new one replaces the name
    installed "$folder/$name" | while read -r path; do
        mkdir -p "$prefix/$(dirname "$path")"
        rm -rf "${prefix:?}/$path"
        mv "$folder/$name/$path" "$prefix/$path"
    done
    echo "installed $("$prefix/bin/tern" --version) in $prefix"
    case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) echo "$prefix/bin is not in PATH: add it, for example with  export PATH=\"\$PATH:$prefix/bin\"" ;;
    esac
}

main() {
    prefix=${HOME:?}/.local action=put
    while [ $# -gt 0 ]; do
        case $1 in
        --prefix | --version)
            [ $# -gt 1 ] || fail "$1: expected a value"
            case $1 in
            --prefix) prefix=$2 ;;
            --version) version=$2 ;;
            esac
            shift
            ;;
        --uninstall) action=uninstall ;;
        *) fail "unknown argument: $1; expected --prefix FOLDER, --version VERSION or --uninstall" ;;
        esac
        shift
    done
    # a script of the repository has no release
    case $releases@$version in
    @*) [ $action = uninstall ] || fail "TERN_RELEASES is not set: use the install.sh of a release" ;;
    *@@*) [ $action = uninstall ] || fail "--version: expected the version of a release" ;;
    esac
    case $prefix in
    /*) ;;
    *) fail "--prefix: expected an absolute folder, got $prefix" ;;
    esac
    $action
}

main "$@"
