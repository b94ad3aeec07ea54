"""Loops without parameters, and programs that look like loops."""

from __future__ import annotations

import torch

from tests.history.loop_programs import Programs

PROGRAMS = Programs()


@PROGRAMS.add("cos_1:1 relu_1:1 mul_1:1 cos_1:2 relu_1:2 mul_1:2 cos_1:3 relu_1:3 mul_1:3")
def xyz_as_a_loop(x):
    for _ in range(3):
        x = torch.relu(torch.cos(x)) * 2
    return x


@PROGRAMS.add("cos_1:1 relu_1:1 mul_1:1 cos_1:2 relu_1:2 mul_1:2 cos_1:3 relu_1:3 mul_1:3")
def xyz_written_out(x):
    x = torch.relu(torch.cos(x)) * 2
    x = torch.relu(torch.cos(x)) * 2
    return torch.relu(torch.cos(x)) * 2


@PROGRAMS.add("cos_1:1 relu_1:1 mul_1:1 cos_1:2 relu_1:2 mul_1:2 tan_1 cos_2 relu_2 mul_2")
def figure_3b(x):
    x = torch.relu(torch.cos(x)) * 2
    x = torch.relu(torch.cos(x)) * 2
    x = torch.tan(x)
    return torch.relu(torch.cos(x)) * 2


@PROGRAMS.add("cos_1 relu_1 mul_1 tan_1 cos_2 relu_2 mul_2 sin_1 cos_3 relu_3 mul_3")
def xyz_apart_written_out(x):
    x = torch.tan(torch.relu(torch.cos(x)) * 2)
    x = torch.sin(torch.relu(torch.cos(x)) * 2)
    return torch.relu(torch.cos(x)) * 2


@PROGRAMS.add("cos_1 relu_1 mul_1 tan_1 cos_2 relu_2 mul_2 sin_1 cos_3 relu_3 mul_3 exp_1")
def xyz_apart_in_a_loop(x):
    for between in (torch.tan, torch.sin, torch.exp):
        x = between(torch.relu(torch.cos(x)) * 2)
    return x


@PROGRAMS.add("add_1 add_2", inputs=lambda: (torch.rand(2), torch.rand(2), torch.rand(2)))
def three_summands(a, b, c):
    return a + b + c


@PROGRAMS.add("cos_1 sin_1 tan_1 add_1 add_2 add_3")
def builtin_sum(x):
    return sum([torch.cos(x), torch.sin(x), torch.tan(x)])


@PROGRAMS.add("relu_1:1 relu_1:2 relu_1:3")
def one_operation_in_a_loop(x):
    for _ in range(3):
        x = torch.relu(x)
    return x


@PROGRAMS.add("relu_1 relu_2 relu_3")
def one_operation_written_out(x):
    x = torch.relu(x)
    x = torch.relu(x)
    return torch.relu(x)


@PROGRAMS.add("getitem_1:1 getitem_2:1 add_1:1 div_1:1 getitem_1:2 getitem_2:2 add_1:2 div_1:2")
def tensors_that_shrink(x):
    for _ in range(2):
        x = (x[:, :-1] + x[:, 1:]) / 2
    return x


@PROGRAMS.add("mul_1:1 cos_1:1 mul_1:2 cos_1:2 mul_1:3 cos_1:3")
def a_scalar_that_changes(x):
    for i in range(3):
        x = torch.cos(x * i)
    return x


@PROGRAMS.add("mul_1 cos_1 mul_2 cos_2")
def a_scalar_that_changes_written_out(x):
    x = torch.cos(x * 2)
    return torch.cos(x * 3)


@PROGRAMS.add("cos_1:1 sin_1:1 cos_1:2 sin_1:2 cos_1:3")
def cut_short_by_a_condition(x):
    for i in range(3):
        x = torch.cos(x)
        if i == 2:
            break
        x = torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 cos_1:2 sin_1:1 cos_1:3 cos_1:4 sin_1:2")
def a_step_in_every_other_pass(x):
    for i in range(4):
        x = torch.cos(x)
        if i % 2:
            x = torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 cos_1:2 sin_1:1 cos_1:3 cos_1:4 sin_1:2 cos_1:5 cos_1:6 sin_1:3")
def a_loop_in_a_loop(x):
    for _ in range(3):
        for _ in range(2):
            x = torch.cos(x)
        x = torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 sin_1:1 cos_1:2 cos_1:3 sin_1:2 cos_1:4 cos_1:5 cos_1:6 sin_1:3")
def an_inner_loop_of_growing_length(x):
    for i in range(3):
        for _ in range(i + 1):
            x = torch.cos(x)
        x = torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 cos_1:2 cos_1:3 sin_1:1 sin_1:2 sin_1:3")
def two_loops_in_a_row(x):
    for _ in range(3):
        x = torch.cos(x)
    for _ in range(3):
        x = torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 sin_1:1 cos_1:2 sin_1:2 tan_1 cos_2:1 sin_2:1 cos_2:2 sin_2:2")
def a_loop_again_after_something_else(x):
    for _ in range(2):
        x = torch.sin(torch.cos(x))
    x = torch.tan(x)
    for _ in range(2):
        x = torch.sin(torch.cos(x))
    return x


@PROGRAMS.add("cos_1:1 sin_1:1 cos_1:2 sin_1:2 tan_1:1 cos_1:3 sin_1:3 cos_1:4 sin_1:4 tan_1:2")
def a_loop_in_a_loop_written_out(x):
    x = torch.sin(torch.cos(x))
    x = torch.sin(torch.cos(x))
    x = torch.tan(x)
    x = torch.sin(torch.cos(x))
    x = torch.sin(torch.cos(x))
    return torch.tan(x)


@PROGRAMS.add("cos_1:1 cos_2:1 sin_1:1 cos_1:2 cos_2:2 sin_1:2")
def a_step_twice_in_a_body_written_out(x):
    x = torch.sin(torch.cos(torch.cos(x)))
    return torch.sin(torch.cos(torch.cos(x)))


SEAM = """cos_1:1 sin_1:1 tan_1:1 cos_2:1 sin_2:1 cos_1:2 sin_1:2 tan_1:2 cos_2:2 sin_2:2
cos_1:3 sin_1:3 tan_1:3 cos_2:3 sin_2:3"""


@PROGRAMS.add(SEAM)
def a_body_that_ends_as_it_begins(x):
    for _ in range(3):
        x = torch.sin(torch.cos(x))
        x = torch.tan(x)
        x = torch.sin(torch.cos(x))
    return x


@PROGRAMS.add(SEAM)
def a_body_that_ends_as_it_begins_written_out(x):
    x = torch.sin(torch.cos(torch.tan(torch.sin(torch.cos(x)))))
    x = torch.sin(torch.cos(torch.tan(torch.sin(torch.cos(x)))))
    return torch.sin(torch.cos(torch.tan(torch.sin(torch.cos(x)))))


@PROGRAMS.add("cos_1:1 sin_1:1 mul_1:1 cos_1:2 sin_1:2 mul_1:2")
def branches_in_a_body(x):
    for _ in range(2):
        x = torch.cos(x) * torch.sin(x)
    return x


@PROGRAMS.add("cos_1:1 cos_2:1 mul_1:1 cos_1:2 cos_2:2 mul_1:2")
def equal_branches_in_a_body(x):
    for _ in range(2):
        x = torch.cos(x) * torch.cos(x)
    return x


@PROGRAMS.add("cos_1 cos_2 mul_1")
def equal_branches(x):
    return torch.cos(x) * torch.cos(x)


@PROGRAMS.add("chunk_1 chunk_2 cos_1 sin_1 cos_2 sin_2 cat_1")
def equal_branches_of_a_comprehension(x):
    return torch.cat([torch.sin(torch.cos(part)) for part in x.chunk(2, 1)])


@PROGRAMS.add("chunk_1 chunk_2 cos_1:1 sin_1:1 cos_2:1 sin_2:1 cos_1:2 sin_1:2 cos_2:2 sin_2:2 cat_1")
def two_streams_in_one_loop(x):
    parts = x.chunk(2, 1)
    for _ in range(2):
        parts = [torch.sin(torch.cos(part)) for part in parts]
    return torch.cat(parts)


@PROGRAMS.add("cos_1:1 mean_1:1 sin_1:1 cos_1:2 mean_1:2 sin_1:2 cos_1:3 mean_1:3 sin_1:3 stack_1")
def side_outputs(x):
    means = []
    for _ in range(3):
        x = torch.cos(x)
        means.append(x.mean())
        x = torch.sin(x)
    return x, torch.stack(means)


@PROGRAMS.add(
    "zeros_1 unbind_1 unbind_2 unbind_3 add_1:1 tanh_1:1 add_1:2 tanh_1:2 add_1:3 tanh_1:3", lambda: (torch.rand(3, 2),)
)
def over_time(x):
    state = torch.zeros(2)
    for step in x.unbind(0):
        state = torch.tanh(step + state)
    return state


@PROGRAMS.add("cos_1:1 add_1:1 cos_1:2 add_1:2 cos_1:3 add_1:3")
def the_input_in_every_pass(x):
    state = x
    for _ in range(3):
        state = torch.cos(state) + x
    return state


@PROGRAMS.add("cos_1:1 cos_1:2 cos_1:3")
def a_function_that_calls_itself(x):
    def again(y, left):
        return again(torch.cos(y), left - 1) if left else y

    return again(x, 3)


@PROGRAMS.add("newzeros_1 cos_1 cos_2 add_1")
def a_loop_over_a_constant(x):
    mask = x.new_zeros(4)
    for _ in range(2):
        mask = torch.cos(mask)
    return x + mask


@PROGRAMS.add("mul_1 add_1 cos_1:1 cos_1:2 add_2 cos_2", lambda: (torch.rand(2),))
def a_loop_between_equal_steps(x):
    y = x * 2 + 1
    for _ in range(2):
        y = torch.cos(y)
    return torch.cos(y + 1)


SUMMED_UP = "mul_1:1 sin_1:1 add_1:1 mul_1:2 sin_1:2 add_1:2 mul_1:3 sin_1:3 add_1:3"


@PROGRAMS.add(SUMMED_UP)
def sum_of_a_generator(x):
    return sum(torch.sin(x * i) for i in range(3))


@PROGRAMS.add(SUMMED_UP)
def sum_from_zero_on(x):
    total = 0
    for i in range(3):
        total = total + torch.sin(x * i)
    return total


@PROGRAMS.add(SUMMED_UP)
def sum_from_zero_on_with_the_new_first(x):
    total = 0
    for i in range(3):
        total = torch.sin(x * i) + total
    return total


@PROGRAMS.add("mul_1:1 sin_1:1 mul_2:1 mul_1:2 sin_1:2 mul_2:2 mul_1:3 sin_1:3 mul_2:3")
def product_from_one_on(x):
    product = 1
    for i in range(3):
        product = product * torch.sin(x * i)
    return product


@PROGRAMS.add("""sum_1:1
    cos_1:1 sum_2:1 div_1:1 mul_1:1 add_1:1 mul_2:1 sub_1:1 sum_1:2 div_2:1 mul_3:1 add_2:1
    cos_1:2 sum_2:2 div_1:2 mul_1:2 add_1:2 mul_2:2 sub_1:2 sum_1:3 div_2:2 mul_3:2 add_2:2
    cos_1:3 sum_2:3 div_1:3 mul_1:3 add_1:3 mul_2:3 sub_1:3 sum_1:4 div_2:3 mul_3:3 add_2:3""")
def one_body_with_two_equal_updates(r):
    """Conjugate gradients: the body divides, multiplies and adds at two places."""
    x = p = r
    size = r.sum()
    for _ in range(3):
        q = torch.cos(p)
        step = size / q.sum()
        x = x + step * p
        r = r - step * q
        before, size = size, r.sum()
        p = r + size / before * p
    return p


@PROGRAMS.add("relu_1 relu_2 relu_3 relu_4 relu_5")
def one_operation_over_and_over(x):
    return x.relu().relu().relu().relu().relu()


@PROGRAMS.add("sin_1 add_1 add_2 add_3 add_4")
def a_long_sum(x):
    return x.sin() + x + x + x + x


@PROGRAMS.add("relu_1:1 relu_2:1 sin_1:1 relu_1:2 relu_2:2 sin_1:2")
def xxy_written_out(x):
    x = x.relu().relu().sin()
    return x.relu().relu().sin()


@PROGRAMS.add("cos_1:1 relu_1:1 cos_1:2 relu_1:2 cos_1:3 relu_1:3 relu_2 relu_3 relu_4 relu_5 sin_1")
def a_loop_and_then_one_operation_over_and_over(x):
    for _ in range(3):
        x = x.cos().relu()
    return x.relu().relu().relu().relu().sin()
