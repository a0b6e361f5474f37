# SPDX-License-Identifier: Apache-2.0
"""What a refresh and a look at freshness cost, measured beside what they are compared with. See README.md."""
