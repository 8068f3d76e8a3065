"""Pieces of job scripts, one a line: what stands in the way of being sure of what a trainer gets."""

from __future__ import annotations

import random
from collections.abc import Iterator

__all__ = ["HEADS", "LINES", "SETS", "STARTS", "USES", "VALUES", "snippets"]


def _listed(text: str) -> list[str]:
    """The lines of a text, in which an arrow stands for a line break or a tab."""
    return [line.replace("⏎", "\n").replace("⇥", "\t") for line in text.split("\n")[1:-1]]


VALUES = _listed(
    r"""
7/2
-7/2
B*2
1.5
" 3"
"3 "
$((1+2))
$((-3))
$((7/2))
$((-7/2))
$((7/-2))
$((0/3))
$((2*(3+4)))
$((010))
$((1/0))
$(())
$((1?2:3))
$((1<2))
$((~1))
$((+1))
$((1%2))
$((2**3))
$((B*2))
$((${B}+$B))
$((B[0]))
$((1,2))
$((f(1)))
$((B++))
$((B=4))
$((B+=4))
$((B==4))
$((1.5))
$((1_0))
$((0))
$((0+10))
$((10**400))
$((1 + ))
$(perl -e 'print 7/2')
$(perl -le "print $B*2;")
$(python -c 'print(1e-4/2)')
$(python3 -c 'print 2 '
$(perl -e 'print 1; unlink q(x)')
$(awk 'BEGIN{print 3*4}')
$(echo 3*4 | bc)
$(expr 3 + 4)
$(date)
$(printf -v B 3)
$(printf 3)
$(cat x > y)
$(C=3; echo $C)
${B}
"$B"
'3'
"3"
$NONE
${NONE:-5}
${NONE-5}
${B:-5}
${B:=5}
${B=5}
${B:?no}
$B$B
"${B}e-5"
${B%2}
${#B}
$L
$SLURM_NNODES
$SLURM_JOB_NAME
$1
`echo 3`
3e-5 # a comment

a\ b
$'3'
$"3"
{1,2}
*.txt
~
$(nproc)
"""
)
"""What $L is set to, and --lr is given; $B is 4."""

LINES = _listed(
    r"""
OLD="--lr 5"⏎export OLD
OLD="--lr 5"⏎export OLDER
OLD="--lr 5"⏎declare -x OLD
OLD="--lr 5"⏎declare -ix OLD
OLD="--lr 5"⏎readonly OLD
OLD="--lr 5"⏎declare -i OLD
OLD="--lr 5"⏎set -a
OLD="--lr 5"⏎set -ea
OLD="--lr 5"⏎set +a
OLD="--lr 5"⏎set -o allexport
OLD="--lr 5"⏎set -o pipefail
OLD="--lr 5"⏎echo "set -a"
OLD="--lr 5"⏎"set -a"
OLD="--lr 5"⏎echo $OLD
OLD="--lr 5"⏎echo OLD
OLD="--lr 5"⏎declare -n B=OLD
OLD="--lr 5"⏎B=${!A}
export A
export OLD
export OLD="--lr 5"
declare -x OLD
declare -ix OLD
set -a
set -ea
set +a
set -o allexport
set -o pipefail
echo "set -a"
echo export OLD
OLD="--lr 5"; echo $OLD
OLD="--lr 5"
OLD="--lr 5" true
OLD="--lr 5"; B=${!A}
OLD="--lr 5"; declare -n B=OLD
echo --lr 5
echo --lr 5 > file
echo --lr 5 | tee log
echo --lr 5 | cat
echo --lr 5 | sh
echo --lr 5 |
X=$(echo --lr 5)
cat <(echo --lr 5)
printf '%s' --lr
logger --lr 5
grep --lr x
other --lr 5
eval --lr 5
xargs --lr 5
sbatch --lr 5
set -- --lr 5
trap --lr EXIT
alias x=--lr
python y.py --lr 5
python y.py --batch 5
python -m y --lr 5
f() { echo --lr; }
f() { echo; }; f --lr 5
# --lr 5
echo 5 # --lr
--lr 5
echo x--lr
echo --lr-x
read A
read B
read -r A B
unset A
unset B
unset -v A
for A in 1; do :; done
for B in 1; do :; done
A[1]=2
let A=3
let A+=3
let B=3
((A++))
((++A))
((A=3))
((A==3))
((A+=3))
((A-1))
: ${A:=3}
: ${A:-3}
printf -v A 3
printf A
getopts ab A
mapfile A
readarray -t A
[ $A = 3 ]
A+=' --fp16'
if true; then A=1; fi
true && A=1
A=1
while read A; do :; done
IFS=,
IFS=, read B
(A=1)
A=1 true
if true; then⏎D=1⏎fi
case x in x) A=1 ;; esac
declare -i A
readonly A
local A
source env.sh
cd x
cat > c.json <<J⏎{"a": 1, "b": $B}⏎J
cat > c.json <<'J'⏎{"a": 1}⏎J
cat <<J⏎{"a": 1}⏎J
cat > c.json <<J⏎{}⏎J
cat > c.json <<J⏎{"a": {"b": [1]}, "fp16": {}}⏎J
cat > c.json <<J⏎[1]⏎J
tee c.json <<J⏎{"a": "$B"}⏎J
cat > c.json <<-J⏎⇥{"a": 1}⏎⇥J
cat > d <<J⏎{"a": 1}⏎J⏎rm d
"""
)
"""What stands before `A="--lr 1"` and the trainer, which gets $A."""

HEADS = _listed(
    r"""
#SBATCH --time=1
#SBATCH --time 1
#SBATCH -t 1
#SBATCH -t1
#SBATCH --time="1:0"
#SBATCH --time='1'
#SBATCH --time=1 # --time=2
#SBATCH --time
#SBATCH -t
#SBATCH --time=1 --time=2
#SBATCH --times=1
#SBATCH --comment=x --time=10:00:00
#SBATCH -J x -t 1
# SBATCH --time=1
##SBATCH --time=1
#SBATCHX -t 1
#SBATCH hetjob
#SBATCH packjob
#SBATCH⏎#SBATCH -t 1
⏎⏎#SBATCH -t 1
set -e⏎#SBATCH -t 1
#SBATCH⇥-t⇥1
#SBATCH -t 1⏎#SBATCH --time=2
#SBATCH --nodes=4
#SBATCH -N 4 --gres=gpu:8
#SBATCH --gpus-per-node=4 --ntasks-per-node 2
"""
)
"""What stands below `#!/bin/bash`."""


SETS = _listed(
    r"""
A="--lr 1 --seed 2"
A='--lr 1'
A=(--lr 1 --seed "2")
A=(--lr=1 '--title' "a b")
A=--lr=1
A=
A=()
B="--lr 1"⏎A="$B --seed 2"
B=(--lr 1)⏎A=("${B[@]}" --seed 2)
A="--seed 2"⏎A="$A --lr 1"
A=(--seed 2)⏎A+=(--lr 1)
"""
)
USES = _listed(
    r"""
$A
"$A"
${A}
${A[@]}
"${A[@]}"
"${A[*]}"
${A[0]}
--lr $A
--lr=$A
x$A
$A$A
${A:-x}
$A --lr 3
--fp16 $A
"""
)
STARTS = _listed(
    r"""
python x.py USED
srun -n 2 bash -c "python x.py USED"
srun -n 2 bash -c 'python x.py USED'
eval "python x.py USED"
eval python x.py USED
eval "python x.py USED; echo x" 2>&1
eval "python x.py⏎USED"
CMD="python x.py USED"⏎$CMD
CMD="python x.py USED"⏎eval $CMD | tee log
CMD="x.py USED"⏎torchrun --nproc 4 $CMD
python -m torch.distributed.run --n 2 x.py USED
python -u -m pkg.train USED
deepspeed --num 2 /a/x.py USED
echo a; python prepare.py --a 1 && python3.9 x.py USED --train-iters 3 &
python x.py USED || python x.py --lr 2
if true; then python x.py USED; fi
f() { python x.py USED; }⏎f
./train USED
"""
)
"""How $A is set, how it is used, and how the trainer is started."""


def snippets() -> Iterator[tuple[str, str]]:
    """A name and a script for each piece, in each place where it may stand."""
    for value in (*VALUES, *(f"$(({'9+' * n}9))" for n in (80, 98, 99, 100, 120))):
        yield f"value {value}", f"#!/bin/bash\n#SBATCH -N 4 -J x\nB=4\nL={value}\npython x.py --seed 1 --lr $L\n"
        yield f"declared {value}", f"B=4\ndeclare -i L={value}\npython x.py --lr=$L --seed 1 $((L*2)) --iters {value}\n"
    for line in LINES:
        text = f'#!/bin/bash\nB=4\n{line}\nA="--lr 1"\npython x.py $A --seed 2 --deepspeed_config c.json\n'
        yield f"line {line}", text
        yield f"line after {line}", text.replace(f"{line}\n", "") + f"{line}\n"
        yield f"line first {line}", f'{line}\nOLD="--lr 5"\nA="--lr 1"\npython x.py $A --seed 2\n'
    for head in HEADS:
        yield f"head {head}", f"#!/bin/bash\n{head}\nN=$SLURM_NNODES\npython x.py --lr 1 --nodes $N\n"
        yield f"only head {head}", f"{head}\npython x.py --lr 1 --job $SLURM_JOB_NAME"
    ways = [(made, used, begun) for made in SETS for used in USES for begun in STARTS]
    for made, used, begun in random.Random(0).sample(ways, 250):
        text = f"{made}\n{begun.replace('USED', used)}\n"
        yield f"way {text}", text
