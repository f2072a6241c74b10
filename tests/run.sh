#!/usr/bin/env bash
# Runs lint, types and tests, two processes at a time. Each one's output is shown whole when it is done, and a table of all
# at the end. Fails if one of them fails.
#
#   tests/run.sh BIN all|quick    BIN: the folder of python, ruff and mypy
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export bin=$1
export OMP_WAIT_POLICY=PASSIVE  # processes that share the cores must not wait in loops
logs=$(mktemp -d)
export logs
trap 'rm -rf "$logs"' EXIT

run() {
	local begin=$SECONDS log status=0 verdict=ok
	log=$(mktemp "$logs/XXXXXX")
	printf '\n== %s\n' "$1" >"$log"
	eval "$bin/$1" >>"$log" 2>&1 || status=$?
	[ $status -eq 0 ] || verdict="FAILED ($status)"
	flock "$logs/lock" cat "$log"  # whole, although two may be done at the same time
	printf '%4d s  %-12s %s: %s\n' $((SECONDS - begin)) "$verdict" "${1##* -q }" "$(tail -1 "$log")" >>"$logs/table"
	return $status
}
export -f run

"$bin/ruff" check && "$bin/ruff" format --check || exit 1

pytest='python -m pytest -p no:cacheprovider --durations=10 --durations-min=1'
case $2 in
all)
	# The longest first. A folder that is not named here comes last.
	folders='training compile_only lab data bench ops streams history methods nn sampling utils'
	for folder in tests/*/; do
		folder=$(basename "$folder")
		[[ " $folders __pycache__ " == *" $folder "* ]] || folders+=" $folder"
	done
	jobs=$(for folder in $folders; do [ -d "tests/$folder" ] && echo "$pytest -q tests/$folder"; done)
	jobs+=$'\n'"$pytest -q tests/test_*.py"$'\n'mypy$'\n'"$pytest -q bench --benchmark-disable"
	;;
quick)
	core="$pytest -m 'not slow and not thorough'"
	jobs="mypy"$'\n'"$core -q tests/ops tests/streams"$'\n'"$core -q tests/sampling tests/history tests/nn tests/methods"
	;;
esac
status=0
xargs -d '\n' -P 2 -I{} bash -c 'run "$0"' {} <<<"$jobs" || status=1
printf '\n'
sort -rn "$logs/table"
printf '%s: %d s\n' "$2" $SECONDS
exit $status
