# Sourced: how the scripts explain themselves.
# shellcheck shell=bash

# help_if_asked SCRIPT ARGUMENTS...: if --help or -h is among the arguments, prints the comment at the head of the script
# and ends with 0. If the program of the settings is given as PROGRAM and its Python is installed as PYTHON, it follows.
help_if_asked() {
    local script=$1 word
    shift
    for word in "$@"; do
        case $word in
            -h | --help)
                sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$script"
                if [ -n "${PROGRAM:-}" ]; then
                    printf '\n'
                    if [ -x "$PYTHON" ]; then exec "$PYTHON" "$PROGRAM" --help; fi
                    printf 'The first call installs what is needed; all settings are in default.py.\n'
                fi
                exit 0 ;;
        esac
    done
}
