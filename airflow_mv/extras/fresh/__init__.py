# SPDX-License-Identifier: Apache-2.0
"""Fresh rows without a refresh: the stored rows together with what changed since. Nothing is written."""
