# Sourced by scripts that have --help.
# shellcheck shell=bash

# help_if_asked SCRIPT PYTHON PROGRAM ARGUMENTS...: if --help or -h is among the arguments, prints the comment at the
# beginning of the script and exits with 0. If PYTHON is installed, PROGRAM's help with the settings follows; scripts
# without settings pass both as empty.
help_if_asked() {
    local script=$1 python=$2 program=$3 word
    shift 3
    for word in "$@"; do
        case $word in
            -h | --help)
                sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$script"
                if [ -n "$program" ]; then
                    printf '\n'
                    if [ -x "$python" ]; then exec "$python" "$program" --help; fi
                    printf 'The first call installs what is needed; all settings are in default.py.\n'
                fi
                exit 0 ;;
        esac
    done
}
