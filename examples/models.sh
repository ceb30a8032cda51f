#!/usr/bin/env bash
# Makes the data of a model, trains it, measures it, and writes the folder that a model hub would get, with its card.
# docs/models.md has the figures, sizes and times.
#   bash examples/models.sh demo|glyphs|words [name=value ...]
#
# All files go to the current folder: data/, models/NAME (the training; repeat the command to resume it), hub/NAME.
# SET and EVALUATION: further options of python -m examples.NAME and python -m examples.NAME.evaluate.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../setup-utils/help.sh
. "$root/setup-utils/help.sh"
help_if_asked "$root/examples/models.sh" "" "" "$@"
name=${1:-}
python=$root/.venv-torch/bin/python
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
read -ra of_set <<<"${SET:-}"
read -ra of_evaluation <<<"${EVALUATION:-}"
untested="- Other seeds, rates and lengths: this is one training."
case $name in
    demo)
        settings=(--dataset demo)
        data="Synthetic faces, drawn by partial_fc/data/synthetic of this project; no image of a person"
        data_license="Apache-2.0, as this project"
        license=apache-2.0
        use="Trying the library without data of your own. Not for photographs: it has seen none."
        untested+=$'\n- Photographs. The drawn faces are easy to learn, and say nothing about faces of people.' ;;
    glyphs)
        settings=(--dataset glyphs --loss cosface sample_ratio=0.1)
        data="Drawings of Han and Hangul characters in typefaces of Debian packages, see examples/glyphs/packages.txt"
        data_license="The typefaces have many, by the copyright files of their packages (number of packages): $(
            grep -v '^#' "$root/examples/glyphs/packages.txt" | awk '{ $1 = $2 = ""; print substr($0, 3) }' |
                sort | uniq -c | sort -rn | awk '{ n = $1; $1 = ""; printf "%s%s (%d)", sep, substr($0, 2), n; sep = ", " }')"
        license="Apache-2.0 for the work of this project; the typefaces have licences of their own"
        use="Finding the same printed character in another typeface, and experiments with many classes"
        untested+=$'\n- Handwriting, scans and photographs, other scripts, and images that are not 64 x 64 pixels.' ;;
    words)
        settings=(--config "$root/examples/words/settings.json" data_root=data)
        data="Forms of Russian lexemes in the dictionary of OpenCorpora (http://opencorpora.org), from the package"
        data+=" pymorphy3-dicts-ru; lexemes with other characters, or with more than 32 letters, were left out"
        data_license="CC BY-SA 3.0, by OpenCorpora"
        license=cc-by-sa-3.0 # what is derived from the dictionary gets its licence
        use="Finding the lexeme of a Russian word form by its letters, and experiments with many classes"
        untested+=$'\n- Words that no dictionary has, misspellings, capital letters, other languages, and meaning.' ;;
    *)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
        exit 2 ;;
esac
shift
bash "$root/setup-utils/install-torch.sh"
if [ "$name" = words ]; then
    "$python" -c 'import pymorphy3_dicts_ru, dawg_python, rapidfuzz, sklearn' 2>/dev/null ||
        "$python" -m pip install -r "$root/setup-utils/requirements/words.txt"
fi
notes=$(mktemp)
trap 'rm -f "$notes"' EXIT
if [ "$name" != demo ]; then
    "$python" -m "examples.$name" --root "data/$name" "${of_set[@]}"
fi
bash "$root/pytorch/run.sh" "${settings[@]}" output="models/$name" resume=auto "$@"
{
    printf "## The training\n\nThe command, in a clone of Partial FC: \`%sbash examples/models.sh %s\`\n\n" \
        "${SET:+SET=\"$SET\" }" "$name${*:+ $*}"
    if [ "$name" != demo ]; then
        printf "## Search and verification of unseen classes\n\nIn percent, with 95 %% intervals over classes or folds."
        printf " Command: \`python -m examples.%s.evaluate\`\n\n" "$name"
        "$python" -m "examples.$name.evaluate" "models/$name" --root "data/$name" "${of_evaluation[@]}"
        printf "\n"
    fi
    printf "## Not tested either\n\n%s\n" "$untested"
} >"$notes"
"$python" -m partial_fc_tools export "models/$name" --hf --out "hub/$name" --force --data "$data" \
    --data-license "$data_license" --license "$license" --use "$use" --notes "$notes"
sha256sum "hub/$name/model.safetensors"
