# SPDX-License-Identifier: Apache-2.0
"""All benchmarks in one run: each figure beside its target, pages and plots."""
