# SPDX-License-Identifier: Apache-2.0
"""The tools that a user may pick instead: each refreshes the same views, after the same changes, on one machine."""
